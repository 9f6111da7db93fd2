// SPDX-License-Identifier: BSD-3-Clause
// Orthogonal polynomials, by their recurrences; their degrees come as numbers of the type.

#define OB_DEGREE(T, S)                                                                                               \
  OB_DEVICE ob_i64 ob_degree_##S(T n) {                                                                               \
    return !(n > -1) ? (ob_i64)-1 : n < (T)1e18 ? (ob_i64)n : (ob_i64)1000000000000000000L;                           \
  }
OB_DEGREE(float, f32)
#ifdef OB_HAS_DOUBLE
OB_DEGREE(double, f64)
#endif

#define OB_RECURRENCE(T, S)                                                                                           \
  /* That of all Chebyshev polynomials, which differ in the one of degree 1. */                                       \
  OB_DEVICE T ob_recurrence_##S(T x, T first, ob_i64 n) {                                                             \
    if (n == 0) return 1;                                                                                             \
    T p = 1, q = first;                                                                                               \
    for (ob_i64 k = 2; k <= n && q == q; ++k) {                                                                       \
      const T r = (x + x) * q - p;                                                                                    \
      p = q;                                                                                                          \
      q = r;                                                                                                          \
    }                                                                                                                 \
    return q;                                                                                                         \
  }
OB_RECURRENCE(float, f32)
#ifdef OB_HAS_DOUBLE
OB_RECURRENCE(double, f64)
#endif

#define OB_CHEBYSHEV_T(T, S)                                                                                          \
  OB_DEVICE T ob_chebyshev_polynomial_t_##S(T x, T degree) {                                                          \
    const ob_i64 n = ob_degree_##S(degree);                                                                           \
    if (n < 0) return 0;                                                                                              \
    if (OB_LIB(fabs)(x) == 1) {                                                                                       \
      const T sign = x > 0 || n % 2 == 0 ? (T)1 : (T)-1;                                                              \
      return sign;                                                                                                    \
    }                                                                                                                 \
    if (n > 6 && OB_LIB(fabs)(x) < 1) {                                                                               \
      const T angle = OB_LIB(acos)(x);                                                                                \
      return OB_LIB(cos)((T)n * angle);                                                                               \
    }                                                                                                                 \
    return ob_recurrence_##S(x, x, n);                                                                                \
  }                                                                                                                   \
  OB_DEVICE T ob_shifted_chebyshev_polynomial_t_##S(T x, T degree) {                                                  \
    return ob_chebyshev_polynomial_t_##S(x + x - 1, degree);                                                          \
  }
OB_CHEBYSHEV_T(float, f32)
#ifdef OB_HAS_DOUBLE
OB_CHEBYSHEV_T(double, f64)
#endif

#define OB_CHEBYSHEV_U(T, S)                                                                                          \
  OB_DEVICE T ob_chebyshev_polynomial_u_##S(T x, T degree) {                                                          \
    const ob_i64 n = ob_degree_##S(degree);                                                                           \
    if (n < 0) return 0;                                                                                              \
    if (OB_LIB(fabs)(x) == 1) {                                                                                       \
      const T sign = x > 0 || n % 2 == 0 ? (T)1 : (T)-1;                                                              \
      return sign * (T)(n + 1);                                                                                       \
    }                                                                                                                 \
    if (n > 8 && OB_LIB(fabs)(x) < 1) {                                                                               \
      const T angle = OB_LIB(acos)(x);                                                                                \
      return OB_LIB(sin)((T)(n + 1) * angle) / OB_LIB(sin)(angle);                                                    \
    }                                                                                                                 \
    return ob_recurrence_##S(x, x + x, n);                                                                            \
  }                                                                                                                   \
  OB_DEVICE T ob_shifted_chebyshev_polynomial_u_##S(T x, T degree) {                                                  \
    return ob_chebyshev_polynomial_u_##S(x + x - 1, degree);                                                          \
  }
OB_CHEBYSHEV_U(float, f32)
#ifdef OB_HAS_DOUBLE
OB_CHEBYSHEV_U(double, f64)
#endif

#define OB_CHEBYSHEV_V(T, S)                                                                                          \
  OB_DEVICE T ob_chebyshev_polynomial_v_##S(T x, T degree) {                                                          \
    const ob_i64 n = ob_degree_##S(degree);                                                                           \
    if (n < 0) return 0;                                                                                              \
    if (OB_LIB(fabs)(x) == 1) {                                                                                       \
      const T sign = x > 0 || n % 2 == 0 ? (T)1 : (T)-1;                                                              \
      return x > 0 ? (T)1 : sign * (T)(n + n + 1);                                                                    \
    }                                                                                                                 \
    if (n > 8 && OB_LIB(fabs)(x) < 1) {                                                                               \
      const T angle = OB_LIB(acos)(x);                                                                                \
      return OB_LIB(cos)(((T)n + (T)0.5) * angle) / OB_LIB(cos)(angle / 2);                                           \
    }                                                                                                                 \
    return ob_recurrence_##S(x, x + x - 1, n);                                                                        \
  }                                                                                                                   \
  OB_DEVICE T ob_shifted_chebyshev_polynomial_v_##S(T x, T degree) {                                                  \
    return ob_chebyshev_polynomial_v_##S(x + x - 1, degree);                                                          \
  }
OB_CHEBYSHEV_V(float, f32)
#ifdef OB_HAS_DOUBLE
OB_CHEBYSHEV_V(double, f64)
#endif

#define OB_CHEBYSHEV_W(T, S)                                                                                          \
  OB_DEVICE T ob_chebyshev_polynomial_w_##S(T x, T degree) {                                                          \
    const ob_i64 n = ob_degree_##S(degree);                                                                           \
    if (n < 0) return 0;                                                                                              \
    if (OB_LIB(fabs)(x) == 1) {                                                                                       \
      const T sign = x > 0 || n % 2 == 0 ? (T)1 : (T)-1;                                                              \
      return x > 0 ? (T)(n + n + 1) : sign;                                                                           \
    }                                                                                                                 \
    if (n > 8 && OB_LIB(fabs)(x) < 1) {                                                                               \
      const T angle = OB_LIB(acos)(x);                                                                                \
      return OB_LIB(sin)(((T)n + (T)0.5) * angle) / OB_LIB(sin)(angle / 2);                                           \
    }                                                                                                                 \
    return ob_recurrence_##S(x, x + x + 1, n);                                                                        \
  }                                                                                                                   \
  OB_DEVICE T ob_shifted_chebyshev_polynomial_w_##S(T x, T degree) {                                                  \
    return ob_chebyshev_polynomial_w_##S(x + x - 1, degree);                                                          \
  }
OB_CHEBYSHEV_W(float, f32)
#ifdef OB_HAS_DOUBLE
OB_CHEBYSHEV_W(double, f64)
#endif

#define OB_HERMITE(T, S)                                                                                              \
  /* Of higher degrees NaN, as torch's. */                                                                            \
  OB_DEVICE T ob_hermite_##S(T x, T step, T degree) {                                                                 \
    const ob_i64 n = ob_degree_##S(degree);                                                                           \
    if (n < 0 || degree - degree != 0) return 0;                                                                      \
    if (n == 0) return 1;                                                                                             \
    if (n > 1 && n > (sizeof(T) == 4 ? 128 : 512)) return (T)OB_NAN;                                                  \
    T p = 1, q = step * x;                                                                                            \
    for (ob_i64 k = 1; k < n; ++k) {                                                                                  \
      const T r = step * (x * q - (T)k * p);                                                                          \
      p = q;                                                                                                          \
      q = r;                                                                                                          \
    }                                                                                                                 \
    return q;                                                                                                         \
  }                                                                                                                   \
  OB_DEVICE T ob_hermite_polynomial_h_##S(T x, T n) { return ob_hermite_##S(x, (T)2, n); }                            \
  OB_DEVICE T ob_hermite_polynomial_he_##S(T x, T n) { return ob_hermite_##S(x, (T)1, n); }
OB_HERMITE(float, f32)
#ifdef OB_HAS_DOUBLE
OB_HERMITE(double, f64)
#endif

#define OB_LAGUERRE(T, S)                                                                                             \
  OB_DEVICE T ob_laguerre_polynomial_l_##S(T x, T degree) {                                                           \
    const ob_i64 n = ob_degree_##S(degree);                                                                           \
    if (n < 0) return 0;                                                                                              \
    if (n == 0 || x == 0) return 1;                                                                                   \
    T p = 1, q = 1 - x;                                                                                               \
    for (ob_i64 k = 1; k < n && q == q; ++k) {                                                                        \
      const T r = (((T)(k + k) + (1 - x)) * q - (T)k * p) / (T)(k + 1);                                               \
      p = q;                                                                                                          \
      q = r;                                                                                                          \
    }                                                                                                                 \
    return q;                                                                                                         \
  }
OB_LAGUERRE(float, f32)
#ifdef OB_HAS_DOUBLE
OB_LAGUERRE(double, f64)
#endif

#define OB_LEGENDRE(T, S)                                                                                             \
  OB_DEVICE T ob_legendre_polynomial_p_##S(T x, T degree) {                                                           \
    const ob_i64 n = ob_degree_##S(degree);                                                                           \
    if (n < 0) return 0;                                                                                              \
    if (OB_LIB(fabs)(x) == 1) return x > 0 || n % 2 == 0 ? (T)1 : (T)-1;                                              \
    if (n == 0) return 1;                                                                                             \
    T p = 1, q = x;                                                                                                   \
    for (ob_i64 k = 1; k < n && q == q; ++k) {                                                                        \
      const T r = ((T)(k + k + 1) * x * q - (T)k * p) / (T)(k + 1);                                                   \
      p = q;                                                                                                          \
      q = r;                                                                                                          \
    }                                                                                                                 \
    return q;                                                                                                         \
  }
OB_LEGENDRE(float, f32)
#ifdef OB_HAS_DOUBLE
OB_LEGENDRE(double, f64)
#endif
