// SPDX-License-Identifier: BSD-3-Clause
// Orthogonal polynomials, by their recurrences. Degrees are passed as floating-point numbers.

// family T, S: float, f32; double, f64
OB_DEVICE ob_i64 ob_degree_S(T n) {
  return !(n > -1) ? (ob_i64)-1 : n < (T)1e18 ? (ob_i64)n : (ob_i64)1000000000000000000L;
}

// family T, S: float, f32; double, f64
// The recurrence of all Chebyshev polynomials, which differ only in the polynomial of degree 1.
OB_DEVICE T ob_recurrence_S(T x, T first, ob_i64 n) {
  if (n == 0) return 1;
  T p = 1, q = first;
  for (ob_i64 k = 2; k <= n && q == q; ++k) {
    const T r = (x + x) * q - p;
    p = q;
    q = r;
  }
  return q;
}

// family T, S: float, f32; double, f64
// Kinds 0 to 3 are T, U, V and W.
OB_DEVICE T ob_chebyshev_of_kind_S(T x, T degree, ob_i32 kind) {
  const ob_i64 n = ob_degree_S(degree);
  if (n < 0) return 0;
  if (OB_LIB(fabs)(x) == 1) {
    const T sign = x > 0 || n % 2 == 0 ? (T)1 : (T)-1;
    if (kind == 1) return sign * (T)(n + 1);
    return kind == (x > 0 ? 3 : 2) ? sign * (T)(n + n + 1) : sign;
  }
  if (n > (kind == 0 ? 6 : 8) && OB_LIB(fabs)(x) < 1) {
    const T angle = OB_LIB(acos)(x);
    if (kind == 0) return OB_LIB(cos)((T)n * angle);
    if (kind == 1) return OB_LIB(sin)((T)(n + 1) * angle) / OB_LIB(sin)(angle);
    const T wide = ((T)n + (T)0.5) * angle;
    return kind == 2 ? OB_LIB(cos)(wide) / OB_LIB(cos)(angle / 2) : OB_LIB(sin)(wide) / OB_LIB(sin)(angle / 2);
  }
  return ob_recurrence_S(x, kind == 0 ? x : kind == 1 ? x + x : kind == 2 ? x + x - 1 : x + x + 1, n);
}
OB_DEVICE T ob_chebyshev_polynomial_t_S(T x, T n) { return ob_chebyshev_of_kind_S(x, n, 0); }
OB_DEVICE T ob_chebyshev_polynomial_u_S(T x, T n) { return ob_chebyshev_of_kind_S(x, n, 1); }
OB_DEVICE T ob_chebyshev_polynomial_v_S(T x, T n) { return ob_chebyshev_of_kind_S(x, n, 2); }
OB_DEVICE T ob_chebyshev_polynomial_w_S(T x, T n) { return ob_chebyshev_of_kind_S(x, n, 3); }
OB_DEVICE T ob_shifted_chebyshev_polynomial_t_S(T x, T n) { return ob_chebyshev_of_kind_S(x + x - 1, n, 0); }
OB_DEVICE T ob_shifted_chebyshev_polynomial_u_S(T x, T n) { return ob_chebyshev_of_kind_S(x + x - 1, n, 1); }
OB_DEVICE T ob_shifted_chebyshev_polynomial_v_S(T x, T n) { return ob_chebyshev_of_kind_S(x + x - 1, n, 2); }
OB_DEVICE T ob_shifted_chebyshev_polynomial_w_S(T x, T n) { return ob_chebyshev_of_kind_S(x + x - 1, n, 3); }

// family T, S: float, f32; double, f64
// NaN for high degrees, as in torch.
OB_DEVICE T ob_hermite_S(T x, T step, T degree) {
  const ob_i64 n = ob_degree_S(degree);
  if (n < 0 || degree - degree != 0) return 0;
  if (n == 0) return 1;
  if (n > 1 && n > (sizeof(T) == 4 ? 128 : 512)) return (T)OB_NAN;
  T p = 1, q = step * x;
  for (ob_i64 k = 1; k < n; ++k) {
    const T r = step * (x * q - (T)k * p);
    p = q;
    q = r;
  }
  return q;
}
OB_DEVICE T ob_hermite_polynomial_h_S(T x, T n) { return ob_hermite_S(x, (T)2, n); }
OB_DEVICE T ob_hermite_polynomial_he_S(T x, T n) { return ob_hermite_S(x, (T)1, n); }

// family T, S: float, f32; double, f64
OB_DEVICE T ob_laguerre_polynomial_l_S(T x, T degree) {
  const ob_i64 n = ob_degree_S(degree);
  if (n < 0) return 0;
  if (n == 0 || x == 0) return 1;
  T p = 1, q = 1 - x;
  for (ob_i64 k = 1; k < n && q == q; ++k) {
    const T r = (((T)(k + k) + (1 - x)) * q - (T)k * p) / (T)(k + 1);
    p = q;
    q = r;
  }
  return q;
}

// family T, S: float, f32; double, f64
OB_DEVICE T ob_legendre_polynomial_p_S(T x, T degree) {
  const ob_i64 n = ob_degree_S(degree);
  if (n < 0) return 0;
  if (OB_LIB(fabs)(x) == 1) return x > 0 || n % 2 == 0 ? (T)1 : (T)-1;
  if (n == 0) return 1;
  T p = 1, q = x;
  for (ob_i64 k = 1; k < n && q == q; ++k) {
    const T r = ((T)(k + k + 1) * x * q - (T)k * p) / (T)(k + 1);
    p = q;
    q = r;
  }
  return q;
}
