// SPDX-License-Identifier: BSD-3-Clause
// Functions of C's library, for languages that lack some of them or have them with large errors. A
// dialect that names this file (`Dialect.library`) defines OB_LIB(name) as ob_lib_ ## name, the
// exact functions fabs, floor, ceil, trunc, rint, sqrt and fma, and OB_OUT(type, name), a parameter
// that a function writes. The methods are from Sun's fdlibm. The polynomials interpolate at
// Chebyshev points. Errors were measured on 2 million numbers, in units of the last place: log 0.8,
// sin and cos 0.8, exp 0.9, pow 1.1, exp2 1.2, erf 1.4, expm1 1.5, inverse functions 0.9 to 2, tan
// 2.3, tanh 2.2, sinh and cosh 2.9, erfc 4; gamma functions 7 for positive arguments.

// The words of the family: the bits of the fraction, the greatest exponent, and the conversions to
// bits and back.
// family T, U, FRACTION, MOST, BITS, REAL, S:
//   float, ob_u32, 23, 127, OB_AS_U32, OB_AS_F32, f32;
//   double, ob_u64, 52, 1023, OB_AS_U64, OB_AS_F64, f64
OB_DEVICE T ob_power_S(ob_i32 n) { return REAL((U)(n + MOST) << FRACTION); }
// The exponent of a positive finite number, which may be subnormal.
OB_DEVICE ob_i32 ob_exponent_S(T x) {
  const ob_i32 stored = (ob_i32)(BITS(x) >> FRACTION);
  if (stored != 0) return stored - MOST;
  return (ob_i32)(BITS(x * ob_power_S(FRACTION + 1)) >> FRACTION) - MOST - FRACTION - 1;
}
// The number without the lower half of its fraction, so that a product of two such numbers is
// exact.
OB_DEVICE T ob_upper_S(T x) { return REAL(BITS(x) & ~(((U)1 << ((FRACTION + 2) / 2)) - (U)1)); }
OB_DEVICE T ob_lib_copysign(T x, T sign) {
  const U top = (U)1 << (8 * sizeof(T) - 1);
  return REAL((BITS(x) & (top - (U)1)) | (BITS(sign) & top));
}
OB_DEVICE T ob_lib_ldexp(T x, ob_i32 n) {
  // Scale in steps, of which only the last one rounds.
  if (n > MOST) {
    x = x * ob_power_S(MOST);
    n -= MOST;
    if (n > MOST) {
      x = x * ob_power_S(MOST);
      n = n - MOST > MOST ? MOST : n - MOST;
    }
  } else if (n < 1 - MOST) {
    const ob_i32 step = MOST - 2 - FRACTION;
    x = x * ob_power_S(-step);
    n += step;
    if (n < 1 - MOST) {
      x = x * ob_power_S(-step);
      n = n + step < 1 - MOST ? 1 - MOST : n + step;
    }
  }
  return x * ob_power_S(n);
}
OB_DEVICE T ob_lib_frexp(T x, OB_OUT(ob_i32, power)) {
  const T size = OB_LIB(fabs)(x);
  power = 0;
  if (!(size > 0 && size < (T)OB_INFINITY)) return x;
  power = ob_exponent_S(size) + 1;
  return OB_LIB(copysign)(OB_LIB(ldexp)(size, -power), x);
}
OB_DEVICE T ob_lib_nextafter(T x, T to) {
  if (x != x || to != to) return (T)OB_NAN;
  if (x == to) return to;
  if (x == 0) return OB_LIB(copysign)(REAL((U)1), to);
  const bool is_away = (x < to) == (x > 0);
  return REAL(is_away ? BITS(x) + (U)1 : BITS(x) - (U)1);
}
OB_DEVICE T ob_lib_fmax(T a, T b) { return a != a || b > a ? b : a; }
OB_DEVICE T ob_lib_hypot(T a, T b) {
  const T x = OB_LIB(fabs)(a), y = OB_LIB(fabs)(b);
  if (x == (T)OB_INFINITY || y == (T)OB_INFINITY) return (T)OB_INFINITY;
  const T most = x > y ? x : y, least = x > y ? y : x;
  if (most == 0 || most != most || least != least) return x + y;
  const T ratio = least / most;
  return most * OB_LIB(sqrt)(1 + ratio * ratio);
}
// Every difference is exact.
OB_DEVICE T ob_lib_fmod(T a, T b) {
  const T divisor = OB_LIB(fabs)(b);
  T rest = OB_LIB(fabs)(a);
  if (!(divisor > 0 && rest < (T)OB_INFINITY)) return (T)OB_NAN;
  if (divisor == (T)OB_INFINITY || rest < divisor) return a;
  const ob_i32 power = ob_exponent_S(divisor);
  while (rest >= divisor) {
    T step = OB_LIB(ldexp)(divisor, ob_exponent_S(rest) - power);
    if (step > rest) step = step * (T)0.5;
    rest = rest - step;
  }
  return OB_LIB(copysign)(rest, a);
}

// (exp(x) - 1 - x) / x^2 for |x| <= log(2) / 2.
OB_DEVICE float ob_exp_tail_f32(float x) {
  float sum = 0.000198919699f;
  sum = sum * x + 0.00139345317f;
  sum = sum * x + 0.00833331003f;
  sum = sum * x + 0.0416664569f;
  sum = sum * x + 0.166666667f;
  sum = sum * x + 0.500000001f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_exp_tail_S(T x) {
  T sum = 1.6087170907940626e-10;
  sum = sum * x + 2.0918952345998525e-9;
  sum = sum * x + 2.5052069612234677e-8;
  sum = sum * x + 2.7557261055508104e-7;
  sum = sum * x + 2.7557319248617208e-6;
  sum = sum * x + 2.4801587338540414e-5;
  sum = sum * x + 0.00019841269841262769;
  sum = sum * x + 0.0013888888888878278;
  sum = sum * x + 0.0083333333333333341;
  sum = sum * x + 0.041666666666666678;
  sum = sum * x + 0.16666666666666667;
  sum = sum * x + 0.50000000000000000;
  return sum;
}

// (2^x - 1) / x for |x| <= 1/2.
OB_DEVICE float ob_exp2_tail_f32(float x) {
  float sum = 0.000154531629f;
  sum = sum * x + 0.00133908634f;
  sum = sum * x + 0.00961808256f;
  sum = sum * x + 0.0555035711f;
  sum = sum * x + 0.240226508f;
  sum = sum * x + 0.693147188f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_exp2_tail_S(T x) {
  T sum = 2.5729324177362304e-11;
  sum = sum * x + 4.4558179083360645e-10;
  sum = sum * x + 7.0548973041554993e-9;
  sum = sum * x + 1.0178057087733941e-7;
  sum = sum * x + 1.3215486808705563e-6;
  sum = sum * x + 1.5252733841556773e-5;
  sum = sum * x + 0.00015403530393370733;
  sum = sum * x + 0.0013333558146406471;
  sum = sum * x + 0.0096181291076284795;
  sum = sum * x + 0.055504108664821627;
  sum = sum * x + 0.24022650695910071;
  sum = sum * x + 0.69314718055994531;
  return sum;
}

// (atanh(x) / x - 1) / x^2 as a function of x^2, for |x| <= 0.1716.
OB_DEVICE float ob_log_tail_f32(float x) {
  float sum = 0.116664564f;
  sum = sum * x + 0.142753654f;
  sum = sum * x + 0.200000613f;
  sum = sum * x + 0.333333333f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_log_tail_S(T x) {
  T sum = 0.059425496716247848;
  sum = sum * x + 0.058438904947859314;
  sum = sum * x + 0.066678269882297325;
  sum = sum * x + 0.076922873890670058;
  sum = sum * x + 0.090909092990849563;
  sum = sum * x + 0.11111111109913864;
  sum = sum * x + 0.14285714285717731;
  sum = sum * x + 0.19999999999999996;
  sum = sum * x + 0.33333333333333333;
  return sum;
}

// (sin(x) / x - 1) / x^2 as a function of x^2, for |x| <= pi / 4.
OB_DEVICE float ob_sin_tail_f32(float x) {
  float sum = 2.72498516e-6f;
  sum = sum * x - 0.000198400862f;
  sum = sum * x + 0.00833333187f;
  sum = sum * x - 0.166666667f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_sin_tail_S(T x) {
  T sum = -7.5866824971577858e-13;
  sum = sum * x + 1.6058531370931903e-10;
  sum = sum * x - 2.5052106230882412e-8;
  sum = sum * x + 2.7557319219334660e-6;
  sum = sum * x - 0.00019841269841265059;
  sum = sum * x + 0.0083333333333333315;
  sum = sum * x - 0.16666666666666667;
  return sum;
}

// (cos(x) - 1 + x^2 / 2) / x^4 as a function of x^2.
OB_DEVICE float ob_cos_tail_f32(float x) {
  float sum = -2.73008973e-7f;
  sum = sum * x + 2.48005999e-5f;
  sum = sum * x - 0.00138888877f;
  sum = sum * x + 0.0416666667f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_cos_tail_S(T x) {
  T sum = 4.7458637732829625e-14;
  sum = sum * x - 1.1470460749696862e-11;
  sum = sum * x + 2.0876755790210228e-9;
  sum = sum * x - 2.7557319221400319e-7;
  sum = sum * x + 2.4801587301584643e-5;
  sum = sum * x - 0.0013888888888888888;
  sum = sum * x + 0.041666666666666667;
  return sum;
}

// (asin(x) / x - 1) / x^2 as a function of x^2, for |x| <= 1/2.
OB_DEVICE float ob_asin_tail_f32(float x) {
  float sum = 0.0336908472f;
  sum = sum * x + 0.0171492384f;
  sum = sum * x + 0.0311006627f;
  sum = sum * x + 0.0445994015f;
  sum = sum * x + 0.0750009454f;
  sum = sum * x + 0.166666663f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_asin_tail_S(T x) {
  T sum = 0.029612011264955120;
  sum = sum * x - 0.019241671746743041;
  sum = sum * x + 0.019554513336123379;
  sum = sum * x + 0.0030448799094556774;
  sum = sum * x + 0.0093195607947674463;
  sum = sum * x + 0.0096218429701002810;
  sum = sum * x + 0.011566459612121669;
  sum = sum * x + 0.013963780012203570;
  sum = sum * x + 0.017352816540325495;
  sum = sum * x + 0.022372157443507222;
  sum = sum * x + 0.030381944475532340;
  sum = sum * x + 0.044642857142551893;
  sum = sum * x + 0.075000000000001178;
  sum = sum * x + 0.16666666666666667;
  return sum;
}

// (atan(x) / x - 1) / x^2 as a function of x^2, for |x| <= tan(pi / 8).
OB_DEVICE float ob_atan_tail_f32(float x) {
  float sum = 0.0504813844f;
  sum = sum * x - 0.0862467612f;
  sum = sum * x + 0.110713650f;
  sum = sum * x - 0.142841512f;
  sum = sum * x + 0.199999773f;
  sum = sum * x - 0.333333333f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_atan_tail_S(T x) {
  T sum = 0.016285756346333736;
  sum = sum * x - 0.034570561522239272;
  sum = sum * x + 0.045515932027718279;
  sum = sum * x - 0.052304542667360598;
  sum = sum * x + 0.058789289973033247;
  sum = sum * x - 0.066664248856920342;
  sum = sum * x + 0.076922963750295690;
  sum = sum * x - 0.090909087535007878;
  sum = sum * x + 0.11111111105155445;
  sum = sum * x - 0.14285714285659828;
  sum = sum * x + 0.19999999999999805;
  sum = sum * x - 0.33333333333333333;
  return sum;
}

// erf(x) / x - 1 as a function of x^2, for |x| <= 1.
OB_DEVICE float ob_erf_tail_f32(float x) {
  float sum = 1.05893806e-6f;
  sum = sum * x - 1.39093400e-5f;
  sum = sum * x + 0.000119565626f;
  sum = sum * x - 0.000854263800f;
  sum = sum * x + 0.00522378348f;
  sum = sum * x - 0.0268661332f;
  sum = sum * x + 0.112837913f;
  sum = sum * x - 0.376126389f;
  sum = sum * x + 0.128379167f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_erf_tail_S(T x) {
  T sum = 2.8067128195611262e-13;
  sum = sum * x - 6.1967364287877000e-12;
  sum = sum * x + 9.3237235181530266e-11;
  sum = sum * x - 1.2277734486795524e-9;
  sum = sum * x + 1.4806027146128752e-8;
  sum = sum * x - 1.6365768648832072e-7;
  sum = sum * x + 1.6462110782018636e-6;
  sum = sum * x - 1.4925650236967502e-5;
  sum = sum * x + 0.00012055332978879484;
  sum = sum * x - 0.00085483270234030006;
  sum = sum * x + 0.0052239776254416740;
  sum = sum * x - 0.026866170645131219;
  sum = sum * x + 0.11283791670955126;
  sum = sum * x - 0.37612638903183752;
  sum = sum * x + 0.12837916709551257;
  return sum;
}

// exp(x^2) erfc(x) (1 + 2 x) as a function of (x - 3.75) / (x + 3.75), for x >= 1/2.
OB_DEVICE float ob_erfc_tail_f32(float x) {
  float sum = 3.44063892e-5f;
  sum = sum * x + 4.91183533e-5f;
  sum = sum * x - 0.000299110201f;
  sum = sum * x + 0.000291793964f;
  sum = sum * x + 0.00175805628f;
  sum = sum * x - 0.00974568270f;
  sum = sum * x + 0.0283619762f;
  sum = sum * x - 0.0586935404f;
  sum = sum * x + 0.0923043381f;
  sum = sum * x - 0.108803921f;
  sum = sum * x + 0.0822767381f;
  sum = sum * x + 0.00358541526f;
  sum = sum * x - 0.140240599f;
  sum = sum * x + 1.23751263f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_erfc_tail_S(T x) {
  T sum = -4.1106732566243465e-12;
  sum = sum * x - 1.2171603905507861e-10;
  sum = sum * x - 2.1690040614378256e-11;
  sum = sum * x + 1.1357593045531800e-9;
  sum = sum * x + 5.2178881468473266e-10;
  sum = sum * x - 7.0558473028371888e-9;
  sum = sum * x - 4.3751460406656711e-9;
  sum = sum * x + 4.1634008533077641e-8;
  sum = sum * x + 2.4295490517808042e-8;
  sum = sum * x - 2.6171295249344307e-7;
  sum = sum * x - 5.8279184919443911e-8;
  sum = sum * x + 1.7537752053770363e-6;
  sum = sum * x - 9.7283612860886686e-7;
  sum = sum * x - 1.1445184633627321e-5;
  sum = sum * x + 2.2383905720361168e-5;
  sum = sum * x + 5.1649446131019794e-5;
  sum = sum * x - 0.00029015397742430426;
  sum = sum * x + 0.00029371358745552651;
  sum = sum * x + 0.0017556258320731372;
  sum = sum * x - 0.0097465795467079851;
  sum = sum * x + 0.028362277421555160;
  sum = sum * x - 0.058693398590615342;
  sum = sum * x + 0.092304321160195848;
  sum = sum * x - 0.10880393014170483;
  sum = sum * x + 0.082276738490151096;
  sum = sum * x + 0.0035854154854636499;
  sum = sum * x - 0.14024059858554702;
  sum = sum * x + 1.2375126308378276;
  return sum;
}

// log(gamma(2 + x)) / (x (1 + x)) for |x| <= 1.
OB_DEVICE float ob_lgamma_tail_f32(float x) {
  float sum = -2.30127718e-6f;
  sum = sum * x + 4.84875340e-6f;
  sum = sum * x - 1.04238133e-6f;
  sum = sum * x + 2.33778329e-6f;
  sum = sum * x - 2.02442964e-5f;
  sum = sum * x + 4.35849880e-5f;
  sum = sum * x - 8.18244512e-5f;
  sum = sum * x + 0.000179888401f;
  sum = sum * x - 0.000406040552f;
  sum = sum * x + 0.000916075365f;
  sum = sum * x - 0.00210808844f;
  sum = sum * x + 0.00499855230f;
  sum = sum * x - 0.0123841942f;
  sum = sum * x + 0.0329650049f;
  sum = sum * x - 0.100317302f;
  sum = sum * x + 0.422784335f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_lgamma_tail_S(T x) {
  T sum = -5.5464515202571325e-11;
  sum = sum * x + 1.1390564273704021e-10;
  sum = sum * x + 2.0962032408762527e-10;
  sum = sum * x - 4.2976452485809288e-10;
  sum = sum * x - 7.2681248744505591e-10;
  sum = sum * x + 1.4933544932751008e-9;
  sum = sum * x + 4.2353240584875620e-10;
  sum = sum * x - 8.5658681003758966e-10;
  sum = sum * x - 3.3385064449006421e-9;
  sum = sum * x + 6.9153233891153338e-9;
  sum = sum * x - 9.1616222155876966e-9;
  sum = sum * x + 1.9154871760639295e-8;
  sum = sum * x - 4.3966628030322176e-8;
  sum = sum * x + 9.2138803535594703e-8;
  sum = sum * x - 1.9146174158031375e-7;
  sum = sum * x + 4.0333996464191574e-7;
  sum = sum * x - 8.5301916098657383e-7;
  sum = sum * x + 1.8082175835468086e-6;
  sum = sum * x - 3.8473102678775044e-6;
  sum = sum * x + 8.2221650480454292e-6;
  sum = sum * x - 1.7661678411724024e-5;
  sum = sum * x + 3.8168892922981884e-5;
  sum = sum * x - 8.3095126117889427e-5;
  sum = sum * x + 0.00018255263873555506;
  sum = sum * x - 0.00040570739751837585;
  sum = sum * x + 0.00091537692227078153;
  sum = sum * x - 0.0021081308339555033;
  sum = sum * x + 0.0049986411646967467;
  sum = sum * x - 0.012384192193371281;
  sum = sum * x + 0.032965000621155832;
  sum = sum * x - 0.10031730167435392;
  sum = sum * x + 0.42278433509846714;
  return sum;
}

// gamma(2 + x) for 0 <= x <= 1.
OB_DEVICE float ob_gamma_tail_f32(float x) {
  float sum = -4.74751766e-6f;
  sum = sum * x + 0.000816108131f;
  sum = sum * x - 0.00161235432f;
  sum = sum * x + 0.0103637880f;
  sum = sum * x + 5.87304292e-5f;
  sum = sum * x + 0.0741652778f;
  sum = sum * x + 0.0815894676f;
  sum = sum * x + 0.411839366f;
  sum = sum * x + 0.422784364f;
  sum = sum * x + 1.00000000f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_gamma_tail_S(T x) {
  T sum = -1.3455594745344374e-8;
  sum = sum * x + 1.6145935549310183e-7;
  sum = sum * x - 9.4506194332121270e-7;
  sum = sum * x + 3.6551453449052613e-6;
  sum = sum * x - 1.0744044983794010e-5;
  sum = sum * x + 2.6349737751650364e-5;
  sum = sum * x - 5.7785775399143932e-5;
  sum = sum * x + 0.00011991441464709062;
  sum = sum * x - 0.00024012341904304419;
  sum = sum * x + 0.00049008825916215807;
  sum = sum * x - 0.00091948774845860453;
  sum = sum * x + 0.0021039143178921899;
  sum = sum * x - 0.0028526426460725143;
  sum = sum * x + 0.011154045328705568;
  sum = sum * x - 0.00026698203498338385;
  sum = sum * x + 0.074249010751558260;
  sum = sum * x + 0.081576919247155700;
  sum = sum * x + 0.41184033042643839;
  sum = sum * x + 0.42278433509846715;
  sum = sum * x + 1.0000000000000000;
  return sum;
}

// The error term of Stirling's formula for log(gamma(x)), times x, as a function of 1 / x^2, for x
// >= 8.
OB_DEVICE float ob_stirling_tail_f32(float x) {
  float sum = 0.000780034719f;
  sum = sum * x - 0.00277769855f;
  sum = sum * x + 0.0833333333f;
  return sum;
}

// family T, S: double, f64
OB_DEVICE T ob_stirling_tail_S(T x) {
  T sum = -0.020855820837463115;
  sum = sum * x + 0.0062081367662297934;
  sum = sum * x - 0.0019149659121629070;
  sum = sum * x + 0.00084173252680224047;
  sum = sum * x - 0.00059523802342912534;
  sum = sum * x + 0.00079365079351172821;
  sum = sum * x - 0.0027777777777776748;
  sum = sum * x + 0.083333333333333333;
  return sum;
}

// The logarithm of 2 in two parts, of which the first has few digits.
// family T, HIGH, LOW, MOST, LEAST, S:
//   float, (0.693145751953125f), (1.4286068203094172e-06f), (89.0f), (-105.0f), f32;
//   double, (0.69314718055920820916), (7.3710025651677990e-13), (710.0), (-746.0), f64
OB_DEVICE T ob_times_log2_S(T n) { return n * HIGH; }
OB_DEVICE T ob_rest_of_log2_S(T n) { return n * LOW; }
// exp(x + rest), where the rest is smaller than the last digit of x.
OB_DEVICE T ob_exp_of_sum_S(T x, T rest) {
  if (!(x < MOST)) return x != x ? x : (T)OB_INFINITY;
  if (x < LEAST) return 0;
  const T n = OB_LIB(rint)(x * (T)1.4426950408889634);
  const T r = (x - n * HIGH) + (rest - n * LOW);
  return OB_LIB(ldexp)(1 + (r + r * r * ob_exp_tail_S(r)), (ob_i32)n);
}
OB_DEVICE T ob_lib_exp(T x) { return ob_exp_of_sum_S(x, 0); }
OB_DEVICE T ob_lib_expm1(T x) {
  if (!(x < MOST)) return x != x ? x : (T)OB_INFINITY;
  if (x < (T)-50) return -1;
  const T n = OB_LIB(rint)(x * (T)1.4426950408889634);
  const T high = x - n * HIGH, low = n * LOW;
  const T r = high - low;
  const T lost = (high - r) - low;
  const T p = r + (r * r * ob_exp_tail_S(r) + lost);
  if (n == 0) return x == 0 ? x : p;
  if (n > 64) return OB_LIB(ldexp)(1 + p, (ob_i32)n);
  const T scale = ob_power_S((ob_i32)n);
  return scale * p + (scale - 1);
}
OB_DEVICE T ob_lib_exp2(T x) {
  if (x != x) return x;
  if (x > (T)1100) return (T)OB_INFINITY;
  if (x < (T)-1100) return 0;
  const T n = OB_LIB(rint)(x), r = x - n;
  return OB_LIB(ldexp)(1 + r * ob_exp2_tail_S(r), (ob_i32)n);
}
OB_DEVICE T ob_lib_sinh(T x) {
  const T size = OB_LIB(fabs)(x);
  if (!(size < (T)22)) {
    const T half = OB_LIB(exp)(size * (T)0.5);
    return OB_LIB(copysign)(half * (T)0.5 * half, x);
  }
  const T grown = OB_LIB(expm1)(size);
  const T twice = size < 1 ? 2 * grown - grown * grown / (grown + 1) : grown + grown / (grown + 1);
  return x == 0 ? x : OB_LIB(copysign)((T)0.5 * twice, x);
}
OB_DEVICE T ob_lib_cosh(T x) {
  const T size = OB_LIB(fabs)(x);
  if (!(size < (T)22)) {
    const T half = OB_LIB(exp)(size * (T)0.5);
    return half * (T)0.5 * half;
  }
  const T grown = OB_LIB(expm1)(size);
  const T power = 1 + grown;
  return size < (T)0.34 ? 1 + grown * grown / (2 * power) : (T)0.5 * power + (T)0.5 / power;
}
OB_DEVICE T ob_lib_tanh(T x) {
  const T size = OB_LIB(fabs)(x);
  if (x == 0 || x != x) return x;
  if (size > (T)22) return OB_LIB(copysign)((T)1, x);
  if (size >= 1) return OB_LIB(copysign)(1 - 2 / (OB_LIB(expm1)(2 * size) + 2), x);
  const T shrunk = OB_LIB(expm1)(-2 * size);
  return OB_LIB(copysign)(-shrunk / (shrunk + 2), x);
}

// A positive finite number as 2^n (1 + f), with 1 + f from sqrt(1/2) to sqrt(2).
// family T, U, I, FRACTION, MOST, ROOT, BITS, REAL, S:
//   float, ob_u32, ob_i32, 23, 127, 0x3f3504f3u, OB_AS_U32, OB_AS_F32, f32;
//   double, ob_u64, ob_i64, 52, 1023, (ob_u64)0x3fe6a09e667f3bcdL, OB_AS_U64, OB_AS_F64, f64
OB_STRUCT(ob_split_S) {
  T n;
  T f;
};
OB_DEVICE ob_split_S ob_split_of_S(T x) {
  ob_split_S split;
  split.n = 0;
  if (BITS(x) < (U)1 << FRACTION) {
    x = x * ob_power_S(FRACTION + 2);
    split.n = -(FRACTION + 2);
  }
  const I power = (I)(BITS(x) - ROOT) >> FRACTION;
  split.n = split.n + (T)power;
  split.f = REAL(BITS(x) - ((U)power << FRACTION)) - 1;
  return split;
}
// The logarithm of a split number 2^n (1 + f), plus a small `rest`.
OB_DEVICE T ob_log_of_S(T n, T f, T rest) {
  const T s = f / (2 + f), half = f * f * (T)0.5;
  const T z = s * s;
  const T r = 2 * z * ob_log_tail_S(z);
  return ob_times_log2_S(n) - ((half - (s * (half + r) + (ob_rest_of_log2_S(n) + rest))) - f);
}
OB_DEVICE T ob_lib_log(T x) {
  if (!(x > 0)) return x == 0 ? -(T)OB_INFINITY : (T)OB_NAN;
  if (x == (T)OB_INFINITY) return x;
  const ob_split_S split = ob_split_of_S(x);
  return ob_log_of_S(split.n, split.f, 0);
}
OB_DEVICE T ob_lib_log1p(T x) {
  if (!(x > -1)) return x == -1 ? -(T)OB_INFINITY : (T)OB_NAN;
  if (x == (T)OB_INFINITY || x == 0) return x;
  if (x > (T)-0.29 && x < (T)0.41) return ob_log_of_S(0, x, 0);
  const T sum = 1 + x;
  const T lost = x >= 1 ? 1 - (sum - x) : x - (sum - 1);
  const ob_split_S split = ob_split_of_S(sum);
  return ob_log_of_S(split.n, split.f, lost / sum);
}
OB_DEVICE T ob_lib_asinh(T x) {
  const T size = OB_LIB(fabs)(x);
  if (!(size < (T)OB_INFINITY) || x == 0) return x;
  if (size > (T)268435456) return OB_LIB(copysign)(OB_LIB(log)(size) + (T)0.6931471805599453, x);
  const T square = size * size;
  const T root = OB_LIB(sqrt)(1 + square);
  if (size > 2) return OB_LIB(copysign)(OB_LIB(log)(2 * size + 1 / (root + size)), x);
  return OB_LIB(copysign)(OB_LIB(log1p)(size + square / (1 + root)), x);
}
OB_DEVICE T ob_lib_acosh(T x) {
  if (!(x >= 1)) return (T)OB_NAN;
  if (x > (T)268435456) return OB_LIB(log)(x) + (T)0.6931471805599453;
  if (x > 2) return OB_LIB(log)(2 * x - 1 / (x + OB_LIB(sqrt)(x * x - 1)));
  const T more = x - 1;
  return OB_LIB(log1p)(more + OB_LIB(sqrt)(2 * more + more * more));
}
OB_DEVICE T ob_lib_atanh(T x) {
  const T size = OB_LIB(fabs)(x);
  if (!(size < 1)) return size == 1 ? OB_LIB(copysign)((T)OB_INFINITY, x) : (T)OB_NAN;
  const T twice = size + size;
  const T ratio = size < (T)0.5 ? twice + twice * size / (1 - size) : twice / (1 - size);
  return OB_LIB(copysign)((T)0.5 * OB_LIB(log1p)(ratio), x);
}

// Logarithms to other bases: the natural logarithm in two parts, of which the first has few digits,
// times the base's factor, also in two parts.
// family T, TWO_HIGH, TWO_LOW, TEN_HIGH, TEN_LOW, POWER_HIGH, POWER_LOW, S:
//   float, 1.4423828125f, 0.00031222838896340736f, 0.4342041015625f, 9.0380340751827651e-05f,
//   0.301025390625f, 4.6050389811952137e-06f, f32;
//   double, 1.4426946640014648438, 3.7688749856360993e-07, 0.43429446220397949219,
//   1.9699272335463629e-08, 0.30102999566361177131, 3.6942390771589305e-13, f64
OB_STRUCT(ob_parts_S) {
  T high;
  T low;
};
OB_DEVICE ob_parts_S ob_log_parts_S(T f) {
  const T s = f / (2 + f), half = f * f * (T)0.5;
  const T z = s * s;
  ob_parts_S parts;
  parts.high = ob_upper_S(f - half);
  parts.low = ((f - parts.high) - half) + s * (half + 2 * z * ob_log_tail_S(z));
  return parts;
}
OB_DEVICE T ob_lib_log2(T x) {
  if (!(x > 0 && x < (T)OB_INFINITY)) return OB_LIB(log)(x);
  const ob_split_S split = ob_split_of_S(x);
  const ob_parts_S of = ob_log_parts_S(split.f);
  const T high = of.high * TWO_HIGH;
  const T sum = split.n + high;
  return ((of.low + of.high) * TWO_LOW + of.low * TWO_HIGH + ((split.n - sum) + high)) + sum;
}
OB_DEVICE T ob_lib_log10(T x) {
  if (!(x > 0 && x < (T)OB_INFINITY)) return OB_LIB(log)(x);
  const ob_split_S split = ob_split_of_S(x);
  const ob_parts_S of = ob_log_parts_S(split.f);
  const T high = of.high * TEN_HIGH, whole = split.n * POWER_HIGH;
  const T sum = whole + high;
  const T low = split.n * POWER_LOW + ((of.low + of.high) * TEN_LOW + of.low * TEN_HIGH);
  return (low + ((whole - sum) + high)) + sum;
}

// family T, S: float, f32; double, f64
// A product and its rounding error.
OB_DEVICE ob_parts_S ob_product_S(T a, T b) {
  const T a_high = ob_upper_S(a), b_high = ob_upper_S(b);
  const T a_low = a - a_high, b_low = b - b_high;
  ob_parts_S product;
  product.high = a * b;
  product.low = ((a_high * b_high - product.high) + a_high * b_low + a_low * b_high) + a_low * b_low;
  return product;
}
// x^y for finite numbers above 0: exp(y log(x)), with the logarithm in two parts.
OB_DEVICE T ob_positive_pow_S(T x, T y) {
  const ob_split_S split = ob_split_of_S(x);
  const T f = split.f;
  const T below = 2 + f;
  const T below_lost = f - (below - 2);
  const T s = f / below;
  const ob_parts_S back = ob_product_S(s, below);
  const T s_lost = (((f - back.high) - back.low) - s * below_lost) / below;
  const T z = s * s;
  const T whole = ob_times_log2_S(split.n), twice = 2 * s;
  const T sum = whole + twice;
  const T lost = split.n == 0 ? (T)0 : twice - (sum - whole);
  const T rest = lost + (ob_rest_of_log2_S(split.n) + (2 * s_lost + twice * z * ob_log_tail_S(z)));
  const T high = sum + rest;
  const T low = rest - (high - sum);
  const T size = y * high;
  if (!(OB_LIB(fabs)(size) < (T)2000)) return size > 0 ? (T)OB_INFINITY : (T)0;
  const ob_parts_S product = ob_product_S(y, high);
  return ob_exp_of_sum_S(product.high, product.low + y * low);
}
OB_DEVICE T ob_lib_pow(T x, T y) {
  if (y == 0 || x == 1) return 1;
  if (x != x || y != y) return (T)OB_NAN;
  const T size = OB_LIB(fabs)(x);
  if (OB_LIB(fabs)(y) == (T)OB_INFINITY) return size == 1 ? (T)1 : (size > 1) == (y > 0) ? (T)OB_INFINITY : (T)0;
  const bool is_whole = OB_LIB(floor)(y) == y;
  const T half = y * (T)0.5;
  const bool is_odd = is_whole && OB_LIB(floor)(half) != half;
  const T sign = is_odd ? OB_LIB(copysign)((T)1, x) : (T)1;
  if (size == 0 || size == (T)OB_INFINITY) return (size == 0) == (y < 0) ? sign * (T)OB_INFINITY : sign * (T)0;
  if (x < 0 && !is_whole) return (T)OB_NAN;
  if (y == 1) return x;
  return sign * ob_positive_pow_S(size, y);
}

// family T, S: float, f32; double, f64
// The arc tangent of x >= 0.
OB_DEVICE T ob_half_atan_S(T x) {
  const bool is_large = x > (T)2.414213562373095, is_small = x < (T)0.41421356237309503;
  const T z = is_large ? -1 / x : is_small ? x : (x - 1) / (x + 1);
  const T square = z * z;
  const T angle = z + z * square * ob_atan_tail_S(square);
  if (is_small) return angle;
  const T base = is_large ? (T)1.5707963267948966 : (T)0.7853981633974483;
  // The rounding error of the constant.
  const T lost = sizeof(T) == 4 ? (T)-4.371139000186241e-08 : (T)6.123233995736766e-17;
  return base + (angle + (is_large ? lost : lost * (T)0.5));
}
OB_DEVICE T ob_lib_atan(T x) {
  return x == 0 || x != x ? x : OB_LIB(copysign)(ob_half_atan_S(OB_LIB(fabs)(x)), x);
}
OB_DEVICE T ob_lib_atan2(T y, T x) {
  if (x != x || y != y) return (T)OB_NAN;
  const T pi = (T)3.141592653589793, lost = sizeof(T) == 4 ? (T)-8.742278000372482e-08 : (T)1.2246467991473532e-16;
  const T across = OB_LIB(fabs)(x), up = OB_LIB(fabs)(y);
  const bool is_left = OB_LIB(copysign)((T)1, x) < 0;
  T angle = 0;
  if (up == (T)OB_INFINITY && across == (T)OB_INFINITY) {
    angle = (T)0.7853981633974483;
  } else if (up != 0) {
    angle = ob_half_atan_S(up / across);
  }
  if (is_left) angle = pi - (angle - lost);
  return OB_LIB(copysign)(angle, y);
}
OB_DEVICE T ob_small_asin_S(T x) {
  const T square = x * x;
  return x + x * square * ob_asin_tail_S(square);
}
OB_DEVICE T ob_lib_asin(T x) {
  const T size = OB_LIB(fabs)(x);
  if (!(size <= 1)) return (T)OB_NAN;
  if (size < (T)0.5) return x == 0 ? x : ob_small_asin_S(x);
  if (size == 1) return OB_LIB(copysign)((T)1.5707963267948966, x);
  const T rest = (1 - size) * (T)0.5;
  const T root = OB_LIB(sqrt)(rest);
  const T high = ob_upper_S(root);
  const T low = (rest - high * high) / (root + high);
  const T lost = sizeof(T) == 4 ? (T)-4.371139000186241e-08 : (T)6.123233995736766e-17;
  const T tail = 2 * root * rest * ob_asin_tail_S(rest);
  const T quarter = (T)0.7853981633974483;
  const T angle = quarter - ((tail - (lost - 2 * low)) - (quarter - 2 * high));
  return OB_LIB(copysign)(angle, x);
}
OB_DEVICE T ob_lib_acos(T x) {
  const T lost = sizeof(T) == 4 ? (T)-4.371139000186241e-08 : (T)6.123233995736766e-17;
  if (!(OB_LIB(fabs)(x) <= 1)) return (T)OB_NAN;
  if (OB_LIB(fabs)(x) < (T)0.5) return (T)1.5707963267948966 - (x - (lost - x * (x * x) * ob_asin_tail_S(x * x)));
  const T rest = (1 - OB_LIB(fabs)(x)) * (T)0.5;
  const T root = OB_LIB(sqrt)(rest);
  if (rest == 0) return x > 0 ? (T)0 : (T)3.141592653589793;
  if (x < 0) return 2 * ((T)1.5707963267948966 - (root + (root * rest * ob_asin_tail_S(rest) - lost)));
  const T high = ob_upper_S(root);
  const T low = (rest - high * high) / (root + high);
  return 2 * (high + (root * rest * ob_asin_tail_S(rest) + low));
}

// The bits of 2/pi, after 32 zero bits.
OB_TABLE ob_u32 ob_turns[] = {
    0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u,
    0xb7246e3au, 0x424dd2e0u, 0x06492eeau, 0x09d1921cu, 0xfe1deb1cu, 0xb129a73eu, 0xe88235f5u, 0x2ebb4484u, 0xe99c7026u,
    0xb45f7e41u, 0x3991d639u, 0x835339f4u, 0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu, 0xef2f118bu, 0x5a0a6d1fu,
    0x6d367ecfu, 0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du, 0x7527bac7u, 0xebe5f17bu, 0x3d0739f7u, 0x8a5292eau, 0x6bfb5fb1u,
    0x1f8d5d08u, 0x56033046u, 0xfc7b6babu, 0u};
// Return 32 of these bits, from the bit `at` on.
OB_DEVICE ob_u32 ob_bits_of_turns(ob_i32 at) {
  const ob_i32 word = at >> 5;
  const ob_u32 shift = (ob_u32)at & 31u;
  const ob_u64 both = ((ob_u64)ob_turns[word] << 32) | ob_turns[word + 1];
  return (ob_u32)((both << shift) >> 32);
}
// The upper half of the product of two 64-bit numbers.
OB_DEVICE ob_u64 ob_upper_product(ob_u64 a, ob_u64 b) {
  const ob_u64 a_low = a & 0xffffffffu, a_high = a >> 32, b_low = b & 0xffffffffu, b_high = b >> 32;
  const ob_u64 across = a_high * b_low + ((a_low * b_low) >> 32);
  const ob_u64 other = a_low * b_high + (across & 0xffffffffu);
  return a_high * b_high + (across >> 32) + (other >> 32);
}

// Reduce an angle to `quarters` quarter turns and a rest of at most pi/4, in two parts. The product
// with 2/pi is computed in integers, without the digits of whole turns.
// family T, U, FRACTION, MOST, WORDS, BITS, S:
//   float, ob_u32, 23, 127, 3, OB_AS_U32, f32;
//   double, ob_u64, 52, 1023, 6, OB_AS_U64, f64
OB_STRUCT(ob_turned_S) {
  T high;
  T low;
  ob_i32 quarters;
};
OB_DEVICE ob_turned_S ob_turned_of_S(T x) {
  ob_turned_S turned;
  const T size = OB_LIB(fabs)(x);
  turned.high = x;
  turned.low = 0;
  turned.quarters = 0;
  if (!(size > (T)0.7853981633974483)) return turned;
  const ob_i32 power = (ob_i32)(BITS(size) >> FRACTION) - MOST - FRACTION;
  const ob_u64 digits = (ob_u64)((BITS(size) & (((U)1 << FRACTION) - (U)1)) | ((U)1 << FRACTION));
  // Multiply word by word, starting with the last. The final carry is whole turns and is dropped.
  ob_u32 words[WORDS];
  ob_u64 carry = 0;
  for (ob_i32 i = WORDS - 1; i >= 0; --i) {
    // The product of `digits`, in two halves, with a word; it has fewer than 96 bits.
    const ob_i32 at = power + 30 + 32 * i;
    const ob_u64 word = at < 0 ? (ob_u64)(ob_bits_of_turns(0) >> (ob_u32)-at) : (ob_u64)ob_bits_of_turns(at);
    const ob_u64 low = (digits & 0xffffffffu) * word + (carry & 0xffffffffu);
    words[i] = (ob_u32)low;
    carry = (digits >> 32) * word + (carry >> 32) + (low >> 32);
  }
  const ob_u64 first = ((ob_u64)words[0] << 32) | words[1];
  turned.quarters = (ob_i32)((first + ((ob_u64)1 << 61)) >> 62);
  ob_u64 rest = first << 2;
  ob_u64 behind = (ob_u64)words[2] << 32;
  if (WORDS > 3) behind |= words[WORDS > 3 ? 3 : 0];
  rest = rest | (behind >> 62);
  behind = behind << 2;
  bool is_negative = (rest >> 63) != 0;
  if (is_negative) {
    rest = ~rest;
    behind = ~behind;
  }
  ob_i32 shift = 0;
  for (; shift < 64 && (rest >> 63) == 0; ++shift) {
    rest = (rest << 1) | (behind >> 63);
    behind = behind << 1;
  }
  // Multiply by pi/4, of which the first 64 bits suffice.
  const ob_u64 angle = ob_upper_product(rest, (ob_u64)0xc90fdaa22168c234UL);
  const ob_i64 kept = (ob_i64)(angle >> 1);
  const T high = (T)kept;
  const T low = (T)(kept - (ob_i64)high);
  const T scale = ob_power_S(-62 - shift);
  is_negative = is_negative != (x < 0);
  turned.high = is_negative ? -(high * scale) : high * scale;
  turned.low = is_negative ? -(low * scale) : low * scale;
  if (x < 0) turned.quarters = -turned.quarters;
  return turned;
}
OB_DEVICE T ob_sin_of_S(T x, T low) {
  const T square = x * x;
  return x + (x * square * ob_sin_tail_S(square) + low * (1 - square * (T)0.5));
}
OB_DEVICE T ob_cos_of_S(T x, T low) {
  const T square = x * x, half = square * (T)0.5;
  const T most = 1 - half;
  return most + (((1 - most) - half) + (square * square * ob_cos_tail_S(square) - x * low));
}
OB_DEVICE T ob_lib_sin(T x) {
  if (!(OB_LIB(fabs)(x) < (T)OB_INFINITY)) return (T)OB_NAN;
  if (x == 0) return x;
  const ob_turned_S turned = ob_turned_of_S(x);
  const bool is_odd = (turned.quarters & 1) != 0;
  const T value = is_odd ? ob_cos_of_S(turned.high, turned.low) : ob_sin_of_S(turned.high, turned.low);
  return (turned.quarters & 2) != 0 ? -value : value;
}
OB_DEVICE T ob_lib_cos(T x) {
  if (!(OB_LIB(fabs)(x) < (T)OB_INFINITY)) return (T)OB_NAN;
  const ob_turned_S turned = ob_turned_of_S(x);
  const bool is_odd = (turned.quarters & 1) != 0;
  const T value = is_odd ? ob_sin_of_S(turned.high, turned.low) : ob_cos_of_S(turned.high, turned.low);
  return ((turned.quarters + 1) & 2) != 0 ? -value : value;
}
OB_DEVICE T ob_lib_tan(T x) {
  if (!(OB_LIB(fabs)(x) < (T)OB_INFINITY)) return (T)OB_NAN;
  if (x == 0) return x;
  const ob_turned_S turned = ob_turned_of_S(x);
  const T sine = ob_sin_of_S(turned.high, turned.low), cosine = ob_cos_of_S(turned.high, turned.low);
  return (turned.quarters & 1) != 0 ? -cosine / sine : sine / cosine;
}

// family T, S: float, f32; double, f64
// erfc(x) for x >= 1/2.
OB_DEVICE T ob_far_erfc_S(T x) {
  if (!(x < (T)28)) return x != x ? x : (T)0;
  const T high = ob_upper_S(x);
  const T power = ob_exp_of_sum_S(-high * high, (high - x) * (high + x));
  return ob_erfc_tail_S((x - (T)3.75) / (x + (T)3.75)) / (1 + 2 * x) * power;
}
OB_DEVICE T ob_lib_erf(T x) {
  const T size = OB_LIB(fabs)(x);
  if (size < 1) return x + x * ob_erf_tail_S(x * x);
  return x != x ? x : OB_LIB(copysign)(1 - ob_far_erfc_S(size), x);
}
OB_DEVICE T ob_lib_erfc(T x) {
  if (x < (T)0.25 && x > (T)-0.5) return 1 - OB_LIB(erf)(x);
  if (x >= (T)0.25 && x < (T)0.5) return (T)0.5 - ((x - (T)0.5) + x * ob_erf_tail_S(x * x));
  return x < 0 ? 2 - ob_far_erfc_S(-x) : ob_far_erfc_S(x);
}

// family T, S: float, f32; double, f64
// sin(pi x) for finite numbers.
OB_DEVICE T ob_sin_of_pi_S(T x) {
  const T rest = x - 2 * OB_LIB(rint)(x * (T)0.5);
  const T quarters = OB_LIB(rint)(2 * rest);
  const T angle = (rest - quarters * (T)0.5) * (T)3.141592653589793;
  const ob_i32 n = (ob_i32)quarters;
  const T value = (n & 1) != 0 ? ob_cos_of_S(angle, 0) : ob_sin_of_S(angle, 0);
  return (n & 2) != 0 ? -value : value;
}
// lgamma(x) for x > 0.
OB_DEVICE T ob_positive_lgamma_S(T x) {
  if (x < 1) return ob_lgamma_tail_S(x - 1) * (x - 1) * x - OB_LIB(log)(x);
  if (x == 1 || x == 2) return 0;
  if (x <= 3) return ob_lgamma_tail_S(x - 2) * (x - 2) * (x - 1);
  if (x < 8) {
    T product = 1;
    for (; x > 3; product = product * x) x = x - 1;
    return OB_LIB(log)(product) + ob_lgamma_tail_S(x - 2) * (x - 2) * (x - 1);
  }
  const T inverse = 1 / x;
  const T rest = (T)0.9189385332046727 + inverse * ob_stirling_tail_S(inverse * inverse);
  return (x - (T)0.5) * (OB_LIB(log)(x) - 1) + (rest - (T)0.5);
}
OB_DEVICE T ob_lib_lgamma(T x) {
  if (x != x) return x;
  if (x == (T)OB_INFINITY || x == -(T)OB_INFINITY) return (T)OB_INFINITY;
  if (x > 0) return ob_positive_lgamma_S(x);
  if (x == OB_LIB(floor)(x)) return (T)OB_INFINITY;
  if (x > (T)-1e-15) return -OB_LIB(log)(-x);
  const T sine = OB_LIB(fabs)(x * ob_sin_of_pi_S(x));
  return OB_LIB(log)((T)3.141592653589793 / sine) - ob_positive_lgamma_S(-x);
}
OB_DEVICE T ob_lib_tgamma(T x) {
  if (x != x || x == (T)OB_INFINITY) return x;
  if (x == 0) return OB_LIB(copysign)((T)OB_INFINITY, x);
  if (x < 0 && x == OB_LIB(floor)(x)) return (T)OB_NAN;
  const T size = OB_LIB(fabs)(x);
  if (size > 20) {
    const T half = OB_LIB(pow)(size, (T)0.5 * size - (T)0.25), inverse = 1 / size;
    const T rest = (T)2.5066282746310007 * OB_LIB(exp)(inverse * ob_stirling_tail_S(inverse * inverse));
    if (x > 0) return half * OB_LIB(exp)(-size) * half * rest;
    return (T)-3.141592653589793 / (x * ob_sin_of_pi_S(x)) / (half * OB_LIB(exp)(-size)) / half / rest;
  }
  T above = 1, below = 1;
  for (; x >= 3; above = above * x) x = x - 1;
  for (; x < 2; x = x + 1) below = below * x;
  return above * ob_gamma_tail_S(x - 2) / below;
}
