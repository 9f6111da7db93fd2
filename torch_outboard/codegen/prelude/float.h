// SPDX-License-Identifier: BSD-3-Clause
// Floating-point functions, with NaN and signed zeros treated as in PyTorch's CPU kernels.

// Comparing a value with itself detects NaN in every language.
// family T, S: float, f32; double, f64
OB_DEVICE bool ob_isnan_S(T a) { return a != a; }
OB_DEVICE bool ob_isinf_S(T a) { return a == (T)OB_INFINITY || a == -(T)OB_INFINITY; }
OB_DEVICE T ob_maximum_S(T a, T b) { return a > b || a != a ? a : b; }
OB_DEVICE T ob_minimum_S(T a, T b) { return a < b || a != a ? a : b; }
OB_DEVICE T ob_fmax_S(T a, T b) { return a != a || b > a ? b : a; }
OB_DEVICE T ob_sign_S(T a) { return (T)((a > 0) - (a < 0)); }
OB_DEVICE T ob_relu_S(T a) { return a < 0 ? (T)0 : a; }
OB_DEVICE T ob_sigmoid_S(T a) { return (T)1 / ((T)1 + OB_LIB(exp)(-a)); }
OB_DEVICE T ob_rsqrt_S(T a) { return (T)1 / OB_LIB(sqrt)(a); }
OB_DEVICE T ob_remainder_S(T a, T b) {
  const T rest = OB_LIB(fmod)(a, b);
  return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}
// As c10::div_floor_floating: exact even where a / b would round up to the next integer.
OB_DEVICE T ob_floordiv_S(T a, T b) {
  if (b == 0) return a / b;
  const T rest = OB_LIB(fmod)(a, b);
  T quotient = (a - rest) / b;
  if (rest != 0 && ((b < 0) != (rest < 0))) quotient -= (T)1;
  if (quotient == 0) return OB_LIB(copysign)((T)0, a / b);
  const T below = OB_LIB(floor)(quotient);
  return quotient - below > (T)0.5 ? below + (T)1 : below;
}
OB_DEVICE T ob_erfinv_S(T y) {
  const T size = OB_LIB(fabs)(y);
  if (!(size <= 1)) return (T)OB_NAN;
  if (size == 1) return OB_LIB(copysign)((T)OB_INFINITY, y);
  T x;
  if (size <= (T)0.7) {
    const T z = y * y;
    const T p = (((T)-0.140543331 * z + (T)0.914624893) * z + (T)-1.645349621) * z + (T)0.886226899;
    const T q = ((((T)0.012229801 * z + (T)-0.329097515) * z + (T)1.442710462) * z + (T)-2.118377725) * z + (T)1;
    x = y * p / q;
  } else {
    const T z = OB_LIB(sqrt)(-OB_LIB(log)(((T)1 - size) / (T)2));
    const T p = (((T)1.641345311 * z + (T)3.429567803) * z + (T)-1.624906493) * z + (T)-1.970840454;
    const T q = ((T)1.637067800 * z + (T)3.543889200) * z + (T)1;
    x = OB_LIB(copysign)(p / q, y);
  }
  // Two steps of Newton's method.
  for (int step = 0; step < 2; ++step)
    x -= (OB_LIB(erf)(x) - y) / ((T)1.1283791670955126 * OB_LIB(exp)(-x * x));
  return x;
}
// Order by value, then by index if values are equal. A NaN comes before all numbers in both orders.
OB_DEVICE bool ob_is_before_max_S(T a, ob_i64 i, T b, ob_i64 j) {
  return a != a ? b == b || i < j : b == b && (a > b || (a == b && i < j));
}
OB_DEVICE bool ob_is_before_min_S(T a, ob_i64 i, T b, ob_i64 j) {
  return a != a ? b == b || i < j : b == b && (a < b || (a == b && i < j));
}

// Languages have erf, but in some of them it does not vectorize, and it dominates the cost of a
// gelu. Use an odd polynomial near 0, and 1 - exp(-p(x)) elsewhere. Both are minimax
// approximations, and both are always computed, without a branch. The error is at most 1.4 units in
// the last place.
OB_DEVICE float ob_erf_f32(float x) {
  const float square = x * x;
  float odd = 8.53884151e-05f;
  odd = odd * square + -0.000818192785f;
  odd = odd * square + 0.00520443608f;
  odd = odd * square + -0.0268607528f;
  odd = odd * square + 0.112837197f;
  odd = odd * square + -0.376126353f;
  odd = odd * square + 0.128379167f;
  const float size = OB_LIB(fabs)(x);
  const float most = size > 4.0f ? 4.0f : size;
  float power = 2.08285302e-05f;
  power = power * most + -0.000431392609f;
  power = power * most + 0.00415625057f;
  power = power * most + -0.0250806058f;
  power = power * most + 0.108220369f;
  power = power * most + 0.633400864f;
  power = power * most + 1.1294884f;
  power = power * most + -0.000169203957f;
  const float far = 1.0f - OB_LIB(exp)(-power);
  return size < 0.9f ? x + x * odd : OB_LIB(copysign)(far, x);
}
#ifdef OB_HAS_DOUBLE
OB_DEVICE double ob_erf_f64(double x) { return OB_LIB(erf)(x); }
#endif

OB_DEVICE bool ob_signbit_f32(float a) { return (OB_AS_U32(a) >> 31) != 0; }
#ifdef OB_HAS_DOUBLE
OB_DEVICE bool ob_signbit_f64(double a) { return (OB_AS_U64(a) >> 63) != 0; }
#endif

// family T, S: ob_i64, i64; ob_u64, u64
OB_DEVICE bool ob_is_before_max_S(T a, ob_i64 i, T b, ob_i64 j) { return a > b || (a == b && i < j); }
OB_DEVICE bool ob_is_before_min_S(T a, ob_i64 i, T b, ob_i64 j) { return a < b || (a == b && i < j); }
