// SPDX-License-Identifier: BSD-3-Clause
// Gamma, zeta and error functions, and related functions. The tables are from Cephes and from
// Temme.

// family T, S: float, f32; double, f64
OB_TABLE T ob_zeta_a_S[] = {
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1892437580.3183792, 74724249600.0, -2950130727918.164,
    116467828143500.67, -4597978722407473.0, 1.8152105401943546e+17, -7.166165256175667e+18};
// The Hurwitz zeta function, by the Euler-Maclaurin formula.
OB_DEVICE T ob_zeta_S(T x, T q) {
  const T least = sizeof(T) == 4 ? (T)5.9604644775390625e-8 : (T)1.1102230246251565e-16;
  if (x <= 1) return x == 1 ? (T)OB_INFINITY : (T)OB_NAN;
  if (q <= 0) {
    if (q == OB_LIB(floor)(q)) return (T)OB_INFINITY;
    if (x != OB_LIB(floor)(x)) return (T)OB_NAN;
  }
  T sum = OB_LIB(pow)(q, -x), at = q, power = 0;
  for (int i = 0; i < 9 || at <= 9; ++i) {
    at += 1;
    power = OB_LIB(pow)(at, -x);
    sum += power;
    if (OB_LIB(fabs)(power) < least * OB_LIB(fabs)(sum) || at != at) return sum;
  }
  sum += power * at / (x - 1) - power / 2;
  for (int i = 0; i < 12; ++i) {
    power *= (x + 2 * i) / at;
    const T term = power / ob_zeta_a_S[i];
    sum += term;
    if (OB_LIB(fabs)(term) < least * OB_LIB(fabs)(sum)) return sum;
    power *= (x + 2 * i + 1) / at;
  }
  return sum;
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_digamma_a_S[] = {
    0.08333333333333333, -0.021092796092796094, 0.007575757575757576, -0.004166666666666667,
    0.003968253968253968, -0.008333333333333333, 0.08333333333333333};
OB_DEVICE T ob_digamma_S(T x) {
  if (x == 0) return OB_LIB(copysign)((T)OB_INFINITY, -x);
  T result = 0;
  if (x < 0) {
    // Use the distance from the nearest integer, which is exact.
    const T rest = x - OB_LIB(rint)(x);
    if (rest == 0 || !(x > -(T)OB_INFINITY)) return (T)OB_NAN;
    result = (T)-3.141592653589793 / OB_LIB(tan)((T)3.141592653589793 * rest);
    x = 1 - x;
  }
  for (; x < 10; x += 1) result -= 1 / x;
  if (x == 10) return result + (T)2.251752589066721;
  const T z = 1 / (x * x);
  return result + OB_LIB(log)(x) - (T)0.5 / x - z * ob_poly_S(ob_digamma_a_S, 7, z);
}

// family T, S: float, f32; double, f64
OB_DEVICE T ob_trigamma_S(T x) {
  T sign = 1, result = 0;
  if (x < (T)0.5) {
    const T sine = OB_LIB(sin)((T)3.141592653589793 * x);
    sign = -1;
    result = -(T)9.869604401089358 / (sine * sine);
    x = 1 - x;
  }
  for (int i = 0; i < 6; ++i, x += 1) result += 1 / (x * x);
  const T z = 1 / (x * x);
  const T rest = z * ((T)(1.0 / 6) - z * ((T)(1.0 / 30) - z * (T)(1.0 / 42)));
  return sign * (result + (1 + 1 / (2 * x) + rest) / x);
}
OB_DEVICE T ob_polygamma_S(T n, T x) {
  if (n == 0) return ob_digamma_S(x);
  if (n == 1) return ob_trigamma_S(x);
  const T size = OB_LIB(exp)(OB_LIB(lgamma)(n + 1)) * ob_zeta_S(n + 1, x);
  return OB_LIB(fmod)(n, (T)2) == 1 ? size : -size;
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_igamma_c0_S[] = {
    -1.85406221071516e-06, -2.1854485106799924e-06, 3.919263178522438e-05, -0.0001787551440329218,
    0.0003527336860670194, 0.0011574074074074073, -0.014814814814814815, 0.08333333333333333,
    -0.3333333333333333};
OB_TABLE T ob_igamma_c1_S[] = {
    -4.018775720164609e-07, 0.00020576131687242798, -0.0009902263374485596, 0.0026455026455026454,
    -0.003472222222222222, -0.001851851851851852};
OB_TABLE T ob_igamma_c2_S[] = {
    0.0007716049382716049, -0.0026813271604938273, 0.004133597883597883};
// u - log(1 + u) without cancellation near 0, where s = u / (2 + u).
OB_DEVICE T ob_log_rest_S(T u) {
  if (!(OB_LIB(fabs)(u) < (T)0.5)) return u - OB_LIB(log)(1 + u);
  const T s = u / (2 + u), z = s * s;
  T sum = 0;
  for (int n = 37; n > 1; n -= 2) sum = sum * z + (T)1 / (T)n;
  return u * s - 2 * s * z * sum;
}
// x^a exp(-x) / gamma(a), by Stirling's series for large a.
OB_DEVICE T ob_igamma_factor_S(T a, T x) {
  if (a < 10) {
    if (x < 50) return OB_LIB(pow)(x, a) * OB_LIB(exp)(-x) / OB_LIB(tgamma)(a);
    return OB_LIB(exp)(a * OB_LIB(log)(x) - x - OB_LIB(lgamma)(a));
  }
  const T z = 1 / (a * a);
  const T rest = ((T)(1.0 / 12) - z * ((T)(1.0 / 360) - z * ((T)(1.0 / 1260) - z * (T)(1.0 / 1680)))) / a;
  const T size = OB_LIB(exp)(-a * ob_log_rest_S((x - a) / a) - rest);
  return size * OB_LIB(sqrt)(a * (T)0.15915494309189535);
}
// The lower function, as a power series.
OB_DEVICE T ob_igamma_series_S(T a, T x) {
  const T least = sizeof(T) == 4 ? (T)5.9604644775390625e-8 : (T)1.1102230246251565e-16;
  T term = 1, sum = 1;
  for (int n = 1; n < 2000 && term > least * sum; ++n) {
    term *= x / (a + (T)n);
    sum += term;
  }
  return sum * ob_igamma_factor_S(a, x) / a;
}
// The upper function, as a continued fraction by Lentz's method.
OB_DEVICE T ob_igamma_fraction_S(T a, T x) {
  const T least = sizeof(T) == 4 ? (T)1.1920928955078125e-7 : (T)2.220446049250313e-16;
  T b = x + 1 - a, c = (T)1e30, d = 1 / b, value = d;
  for (int n = 1; n < 2000; ++n) {
    const T weight = (T)n * (a - (T)n);
    b += 2;
    d = 1 / (weight * d + b);
    c = b + weight / c;
    value *= c * d;
    if (OB_LIB(fabs)(c * d - 1) < least) break;
  }
  return value * ob_igamma_factor_S(a, x);
}
// Temme's expansion for a > 10^4; the lower function has sign -1.
OB_DEVICE T ob_igamma_far_S(T a, T x, T sign) {
  const T u = (x - a) / a, rest = ob_log_rest_S(u);
  const T eta = OB_LIB(copysign)(OB_LIB(sqrt)(2 * rest), u);
  const T main = (T)0.5 * OB_LIB(erfc)(sign * OB_LIB(copysign)(OB_LIB(sqrt)(a * rest), u));
  if (!(a * rest < 50)) return main;
  const T c0 = ob_poly_S(ob_igamma_c0_S, 9, eta), c1 = ob_poly_S(ob_igamma_c1_S, 6, eta);
  const T sum = c0 + (c1 + ob_poly_S(ob_igamma_c2_S, 3, eta) / a) / a;
  return main + sign * OB_LIB(exp)(-a * rest) * sum / OB_LIB(sqrt)((T)6.283185307179586 * a);
}
OB_DEVICE T ob_igamma_S(T a, T x) {
  if (x < 0 || a < 0) return (T)OB_NAN;
  if (a == 0) return x > 0 ? (T)1 : (T)OB_NAN;
  if (x == 0) return 0;
  if (a == (T)OB_INFINITY) return x == (T)OB_INFINITY ? (T)OB_NAN : (T)0;
  if (x == (T)OB_INFINITY) return 1;
  if (a > 10000) return ob_igamma_far_S(a, x, (T)-1);
  return x <= 1 || x <= a ? ob_igamma_series_S(a, x) : 1 - ob_igamma_fraction_S(a, x);
}
OB_DEVICE T ob_igammac_S(T a, T x) {
  if (x < 0 || a < 0) return (T)OB_NAN;
  if (a == 0) return x > 0 ? (T)0 : (T)OB_NAN;
  if (x == 0) return 1;
  if (a == (T)OB_INFINITY) return x == (T)OB_INFINITY ? (T)OB_NAN : (T)1;
  if (x == (T)OB_INFINITY) return 0;
  if (a > 10000) return ob_igamma_far_S(a, x, (T)1);
  return x <= 1 || x <= a ? 1 - ob_igamma_series_S(a, x) : ob_igamma_fraction_S(a, x);
}
OB_DEVICE T ob_gammainc_S(T a, T x) { return ob_igamma_S(a, x); }
OB_DEVICE T ob_gammaincc_S(T a, T x) { return ob_igammac_S(a, x); }

// family T, S: float, f32; double, f64
OB_TABLE T ob_erfcx_p_S[] = {
    2.461969814735305e-10, 0.5641895648310689, 7.463210564422699, 48.63719709856814, 196.5208329560771,
    526.4451949954773, 934.5285271719576, 1027.5518868951572, 557.5353353693994};
OB_TABLE T ob_erfcx_q_S[] = {
    1.0, 13.228195115474499, 86.70721408859897, 354.9377788878199, 975.7085017432055, 1823.9091668790973,
    2246.3376081871097, 1656.6630919416134, 557.5353408177277};
OB_TABLE T ob_erfcx_r_S[] = {
    0.5641895835477551, 1.275366707599781, 5.019050422511805, 6.160210979930536, 7.4097426995044895,
    2.9788666537210022};
OB_TABLE T ob_erfcx_s_S[] = {
    1.0, 2.2605286322011726, 9.396035249380015, 12.048953980809666, 17.08144507475659, 9.608968090632859,
    3.369076451000815};
// exp(x^2) erfc(x).
OB_DEVICE T ob_erfcx_S(T x) {
  const T size = OB_LIB(fabs)(x), z = x * x;
  if (size < 1) return OB_LIB(exp)(z) * OB_LIB(erfc)(x);
  T value;
  if (size < 8) {
    value = ob_poly_S(ob_erfcx_p_S, 9, size) / ob_poly_S(ob_erfcx_q_S, 9, size);
  } else if (size < 50) {
    value = ob_poly_S(ob_erfcx_r_S, 6, size) / ob_poly_S(ob_erfcx_s_S, 7, size);
  } else if (size < (T)3e7) {
    value = (T)0.5641895835477563 * (z * (z + (T)4.5) + 2) / (size * (z * (z + 5) + (T)3.75));
  } else {
    value = (T)0.5641895835477563 / size;
  }
  return x < 0 ? 2 * OB_LIB(exp)(z) - value : value;
}

// family T, S: float, f32; double, f64
OB_DEVICE T ob_ndtr_S(T given) {
  const T x = given * (T)0.7071067811865476, size = OB_LIB(fabs)(x);
  if (size < (T)0.7071067811865476) return (T)0.5 + (T)0.5 * OB_LIB(erf)(x);
  const T value = (T)0.5 * OB_LIB(erfc)(size);
  return x > 0 ? 1 - value : value;
}

// family T, S: float, f32; double, f64
OB_DEVICE T ob_log_ndtr_S(T x) {
  const T t = x * (T)0.7071067811865476;
  if (x < -1) return OB_LIB(log)(ob_erfcx_S(-t) / 2) - t * t;
  return OB_LIB(log1p)(-OB_LIB(erfc)(t) / 2);
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_ndtri_p0_S[] = {
    -59.96335010141079, 98.00107541859997, -56.67628574690703, 13.931260938727968, -1.2391658386738125};
OB_TABLE T ob_ndtri_q0_S[] = {
    1.0, 1.9544885833814176, 4.676279128988815, 86.36024213908905, -225.46268785411937, 200.26021238006066,
    -82.03722561683334, 15.90562251262117, -1.1833162112133};
OB_TABLE T ob_ndtri_p1_S[] = {
    4.0554489230596245, 31.525109459989388, 57.16281922464213, 44.08050738932008, 14.684956192885803,
    2.1866330685079025, -0.1402560791713545, -0.03504246268278482, -0.0008574567851546854};
OB_TABLE T ob_ndtri_q1_S[] = {
    1.0, 15.779988325646675, 45.39076351288792, 41.3172038254672, 15.04253856929075, 2.504649462083094,
    -0.14218292285478779, -0.03808064076915783, -0.0009332594808954574};
OB_TABLE T ob_ndtri_p2_S[] = {
    3.2377489177694603, 6.915228890689842, 3.9388102529247444, 1.3330346081580755, 0.20148538954917908,
    0.012371663481782003, 0.00030158155350823543, 2.6580697468673755e-06, 6.239745391849833e-09};
OB_TABLE T ob_ndtri_q2_S[] = {
    1.0, 6.02427039364742, 3.6798356385616087, 1.3770209948908132, 0.21623699359449663,
    0.013420400608854318, 0.00032801446468212774, 2.8924786474538068e-06, 6.790194080099813e-09};
OB_DEVICE T ob_ndtri_S(T given) {
  const T tail = (T)0.1353352832366127;
  if (!(given > 0 && given < 1)) {
    return given == 0 ? -(T)OB_INFINITY : given == 1 ? (T)OB_INFINITY : (T)OB_NAN;
  }
  const bool is_above = given > 1 - tail;
  const T y = is_above ? 1 - given : given;
  if (y > tail) {
    const T u = y - (T)0.5, z = u * u;
    const T p = ob_poly_S(ob_ndtri_p0_S, 5, z) / ob_poly_S(ob_ndtri_q0_S, 9, z);
    return (u + u * (z * p)) * (T)2.5066282746310007;
  }
  const T x = OB_LIB(sqrt)(-2 * OB_LIB(log)(y)), z = 1 / x;
  const T far = ob_poly_S(ob_ndtri_p2_S, 9, z) / ob_poly_S(ob_ndtri_q2_S, 9, z);
  const T near = ob_poly_S(ob_ndtri_p1_S, 9, z) / ob_poly_S(ob_ndtri_q1_S, 9, z);
  const T value = x - OB_LIB(log)(x) / x - z * (x < 8 ? near : far);
  return is_above ? value : -value;
}
