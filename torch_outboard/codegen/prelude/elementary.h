// SPDX-License-Identifier: BSD-3-Clause
// Functions of a float32 for compilers that vectorize loops. Such compilers do not vectorize calls
// of C's library, which makes a loop fifty times slower. If the language defines OB_IN_LOOPS, these
// functions compute in double, without branches; otherwise they call C's library.

// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE T ob_power_of_two_S(T n) { return OB_AS_F64((ob_u64)((ob_i64)(ob_i32)n + 1023) << 52); }
#endif

// Round to the nearest integer, for |x| < 2^51.
// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE T ob_nearest_S(T x) { return (x + 6755399441055744.0) - 6755399441055744.0; }
#endif

// exp(x) - 1 for |x| < 700, from 2^n * exp(r). Further terms would not change a float.
// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE T ob_grown_S(T x) {
  const T n = ob_nearest_S(x * 1.4426950408889634);
  const T r = x - n * 0.6931471805599453;
  T p = 1.0 / 3628800 + r / 39916800;
  p = 1.0 / 40320 + r * (1.0 / 362880 + r * p);
  p = 1.0 / 720 + r * (1.0 / 5040 + r * p);
  p = 1.0 / 24 + r * (1.0 / 120 + r * p);
  p = r * (1 + r * (0.5 + r * (1.0 / 6 + r * p)));
  const T scale = ob_power_of_two_S(n);
  return scale * p + (scale - 1);
}
#endif

// The logarithm of a positive number that is neither subnormal nor infinite.
// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE T ob_positive_log_S(T x) {
  const ob_u64 bits = OB_AS_U64(x);
  const ob_i32 power = (ob_i32)((ob_u32)(bits >> 32) - 0x3fe6a09eu) >> 20;  // for a fraction >= sqrt(1/2)
  const T fraction = OB_AS_F64(bits - ((ob_u64)(ob_i64)power << 52));
  const T f = (fraction - 1) / (fraction + 1), s = f * f;
  T p = 1.0 / 11 + s * (1.0 / 13 + s / 15);
  p = 1.0 / 5 + s * (1.0 / 7 + s * (1.0 / 9 + s * p));
  return power * 0.6931471805599453 + 2 * f * (1 + s * (1.0 / 3 + s * p));
}
#endif

// log(1 + x) for x > -1. The part of x that 1 + x rounds away is added again.
// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE T ob_positive_log1p_S(T x) {
  const T sum = 1 + x;
  return ob_positive_log_S(sum) + (x - (sum - 1)) / sum;
}
#endif

// The arc tangent of x >= 0 or infinity, reduced to an argument of at most tan(pi/8).
// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE T ob_positive_atan_S(T x) {
  const bool is_large = x > 2.414213562373095, is_small = x < 0.41421356237309503;
  const T z = is_large ? -1 / x : is_small ? x : (x - 1) / (x + 1), s = z * z;
  T p = 1.0 / 23 - s * (1.0 / 25 - s / 27);
  p = 1.0 / 15 - s * (1.0 / 17 - s * (1.0 / 19 - s * (1.0 / 21 - s * p)));
  p = 1.0 / 7 - s * (1.0 / 9 - s * (1.0 / 11 - s * (1.0 / 13 - s * p)));
  p = z * (1 - s * (1.0 / 3 - s * (1.0 / 5 - s * p)));
  return p + (is_large ? 1.5707963267948966 : is_small ? 0.0 : 0.7853981633974483);
}
#endif

// (2^n * 2/pi) mod 4 for n from -25 on, in two parts. A product of the first, which has 29 bits,
// with the 24 bits of a float32 is exact.
// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_TABLE T ob_turns_high_S[] = {
    2.2351741790771484e-08, 3.725290298461914e-08, 7.450580596923828e-08, 1.4901161193847656e-07,
    3.0547380447387695e-07, 6.034970283508301e-07, 1.214444637298584e-06, 2.428889274597168e-06,
    4.857778549194336e-06, 9.715557098388672e-06, 1.9431114196777344e-05, 3.8854777812957764e-05,
    7.770955562591553e-05, 0.00015542656183242798, 0.00031085312366485596, 0.000621698796749115,
    0.00124339759349823, 0.00248679518699646, 0.00497359037399292, 0.00994718074798584,
    0.019894368946552277, 0.03978873789310455, 0.07957746833562851, 0.15915494412183762,
    0.31830988824367523, 0.6366197690367699, 1.2732395455241203, 2.5464790910482407, 1.0929581820964813,
    2.185916356742382, 0.3718327134847641, 0.7436654344201088, 1.487330861389637, 2.974661722779274,
    1.9493234530091286, 3.898646906018257, 3.7972938120365143, 3.594587616622448, 3.189175233244896,
    2.3783504739403725, 0.7567009404301643, 1.5134018808603287, 3.0268037617206573, 2.0536075308918953,
    0.10721505433320999, 0.21443010866641998, 0.42886021733283997, 0.8577204346656799, 1.7154408693313599,
    3.4308817461133003, 2.86176348477602, 1.7235269770026207, 3.447053946554661, 2.894107900559902,
    1.7882157936692238, 3.5764315873384476, 3.1528631821274757, 2.305726356804371, 0.6114527210593224,
    1.2229054346680641, 2.4458108693361282, 0.8916217461228371, 1.7832434922456741, 3.5664869844913483,
    3.1329739689826965, 2.265947937965393, 0.5318958759307861, 1.0637917518615723, 2.127583496272564,
    0.25516699254512787, 0.5103339850902557, 1.0206679701805115, 2.0413359478116035, 0.0826718881726265,
    0.165343776345253, 0.3306875601410866, 0.6613751202821732, 1.3227502405643463, 2.645500473678112,
    1.2910009548068047, 2.5820019021630287, 1.164003811776638, 2.3280076161026955, 0.6560152396559715,
    1.312030479311943, 2.624060958623886, 1.2481219172477722, 2.4962438344955444, 0.9924876615405083,
    1.9849753305315971, 3.9699506536126137, 3.9399013072252274, 3.8798026144504547, 3.75960523635149,
    3.51921047270298, 3.03842094540596, 2.07684189081192, 0.15368378162384033, 0.30736755579710007,
    0.6147351190447807, 1.2294702306389809, 2.4589404687285423, 0.9178809300065041, 1.8357618600130081,
    3.671523727476597, 3.3430474549531937, 2.6860949024558067, 1.372189812362194, 2.7443796172738075,
    1.488759234547615, 2.9775184765458107, 1.9550369530916214, 3.910073898732662, 3.820147804915905,
    3.64029560983181, 3.28059121966362, 2.5611824318766594, 1.1223648712038994, 2.2447297424077988,
    0.48945948481559753, 0.9789189621806145, 1.957837924361229, 3.915675848722458, 3.8313516974449158,
    3.6627033948898315, 3.325406789779663, 2.6508135870099068, 1.3016271740198135, 2.6032543405890465,
    1.2065086886286736};
OB_TABLE T ob_turns_low_S[] = {
    -3.3789940962916213e-09, 6.925924043405856e-10, 1.3851848086811712e-09, 2.7703696173623425e-09,
    -1.9098413621991427e-09, 3.6308978725255422e-09, -1.8878485187274346e-10, -3.775697037454869e-10,
    -7.551394074909738e-10, -1.5102788149819477e-09, -3.0205576299638954e-09, 1.4094653369960374e-09,
    2.8189306739920747e-09, -1.8127192489396788e-09, -3.6254384978793577e-09, 1.9970360116511282e-10,
    3.9940720233022564e-10, 7.988144046604513e-10, 1.5976288093209026e-09, 3.195257618641805e-09,
    -1.0600653596402176e-09, -2.1201307192804353e-09, 3.2103191583629576e-09, -1.0299422801979132e-09,
    -2.0598845603958264e-09, 3.330811476132176e-09, -7.889576446594768e-10, -1.5779152893189536e-09,
    -3.1558305786379073e-09, 1.138919439648014e-09, 2.277838879296028e-09, -2.894902838331772e-09,
    1.6607749202602838e-09, 3.3215498405205676e-09, -8.074809158826933e-10, -1.6149618317653865e-09,
    -3.229923663530773e-09, 9.907332698622821e-10, 1.9814665397245642e-09, -3.4876475174746992e-09,
    4.752855619744297e-10, 9.505711239488593e-10, 1.9011422478977186e-09, -3.648296101128391e-09,
    1.5398839466704606e-10, 3.0797678933409213e-10, 6.159535786681843e-10, 1.2319071573363685e-09,
    2.463814314672737e-09, -2.522951967578354e-09, 2.4046766617671204e-09, -2.6412272733895872e-09,
    2.1681260501446532e-09, -3.1143284966345213e-09, 1.2219236036547852e-09, 2.4438472073095704e-09,
    -2.562886182304687e-09, 2.3248082323144544e-09, -2.8009641322949198e-09, 1.848652332333989e-09,
    3.697304664667978e-09, -5.597126758787221e-11, -1.1194253517574442e-10, -2.2388507035148884e-10,
    -4.477701407029777e-10, -8.955402814059554e-10, -1.7910805628119107e-09, -3.5821611256238215e-09,
    2.8625834567618517e-10, 5.725166913523703e-10, 1.1450333827047407e-09, 2.2900667654094814e-09,
    -2.870447066104865e-09, 1.709686464714098e-09, 3.419372929428196e-09, -6.118347380674357e-10,
    -1.2236694761348713e-09, -2.4473389522697427e-09, 2.555902692384343e-09, -2.3387752121551418e-09,
    2.773030172613544e-09, -1.9045202516967394e-09, 3.6415400935303494e-09, -1.6750040986312977e-10,
    -3.3500081972625953e-10, -6.700016394525191e-10, -1.3400032789050381e-09, -2.6800065578100763e-09,
    2.090567481303676e-09, -3.2694456343164765e-09, 9.116893282908753e-10, 1.8233786565817506e-09,
    3.646757313163501e-09, -1.5706597059682562e-10, -3.1413194119365123e-10, -6.282638823873025e-10,
    -1.256527764774605e-09, -2.51305552954921e-09, 2.4244695378254084e-09, -2.601641521273011e-09,
    2.247297554377806e-09, -2.955985488168216e-09, 1.538609620587396e-09, 3.077219241174792e-09,
    -1.2961421145742448e-09, -2.5922842291484896e-09, 2.2660121386268493e-09, -2.9185563196701295e-09,
    1.613467957583569e-09, 3.226935915167138e-09, -9.967087665895522e-10, -1.9934175331791044e-09,
    3.4637455305656194e-09, -5.230895357925892e-10, -1.0461790715851783e-09, -2.0923581431703566e-09,
    3.265864310583115e-09, -9.188519757575982e-10, -1.8377039515151963e-09, -3.6754079030303927e-09,
    9.976479086304255e-11, 1.995295817260851e-10, 3.990591634521702e-10, 7.981183269043404e-10,
    1.5962366538086808e-09, 3.1924733076173616e-09, -1.065633981689105e-09, -2.13126796337821e-09,
    3.188044670167408e-09, -1.0744912565890117e-09};
#endif

// The sine of a float32: reduce it to an angle of at most pi/4. The number of quarter turns selects
// that angle's sine or cosine.
// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE T ob_rest_of_turns_S(float x, ob_i32* quarters) {
  const float size = OB_LIB(fabs)(x);
  const ob_u32 bits = OB_AS_U32(size);
  const ob_i32 power = (ob_i32)(bits >> 23);
  const ob_i32 at = power < 125 ? 0 : power > 254 ? 129 : power - 125;
  const T digits = (T)(ob_i32)((bits & 0x7fffffu) | 0x800000u);
  const T turns = digits * ob_turns_high_S[at];
  const T whole = ob_nearest_S(turns);
  const bool is_small = power < 125;  // below 1/4
  *quarters = is_small ? 0 : (ob_i32)whole & 3;
  return is_small ? (T)size : ((turns - whole) + digits * ob_turns_low_S[at]) * 1.5707963267948966;
}
OB_DEVICE T ob_sine_S(T r) {
  const T s = r * r;
  const T p = s * (1.0 / 362880 - s * (1.0 / 39916800 - s / 6227020800.0));
  return r - r * s * (1.0 / 6 - s * (1.0 / 120 - s * (1.0 / 5040 - p)));
}
OB_DEVICE T ob_cosine_S(T r) {
  const T s = r * r;
  const T p = s * (1.0 / 3628800 - s * (1.0 / 479001600 - s / 87178291200.0));
  return 1 - s * (0.5 - s * (1.0 / 24 - s * (1.0 / 720 - s * (1.0 / 40320 - p))));
}
OB_DEVICE float ob_sine_of_turns_S(T rest, ob_i32 quarters) {
  const T value = (quarters & 1) != 0 ? ob_cosine_S(rest) : ob_sine_S(rest);
  return (float)((quarters & 2) != 0 ? -value : value);
}
#endif

// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE float ob_log_times_S(float x, T factor) {
  const float value = (float)(ob_positive_log_S(x) * factor);
  return x > 0 ? (x == OB_INFINITY ? x : value) : x == 0 ? -OB_INFINITY : OB_NAN;
}
#endif

OB_DEVICE float ob_float_log(float x) {
#ifdef OB_IN_LOOPS
  return ob_log_times_f64(x, 1);
#else
  return OB_LIB(log)(x);
#endif
}

OB_DEVICE float ob_float_log2(float x) {
#ifdef OB_IN_LOOPS
  return ob_log_times_f64(x, 1.4426950408889634);
#else
  return OB_LIB(log2)(x);
#endif
}

OB_DEVICE float ob_float_log10(float x) {
#ifdef OB_IN_LOOPS
  return ob_log_times_f64(x, 0.4342944819032518);
#else
  return OB_LIB(log10)(x);
#endif
}

OB_DEVICE float ob_float_log1p(float x) {
#ifdef OB_IN_LOOPS
  const float value = (float)ob_positive_log1p_f64(x);
  const float end = x == -1 ? -OB_INFINITY : OB_NAN;
  return x > -1 ? (x == OB_INFINITY || x == 0 ? x : value) : end;
#else
  return OB_LIB(log1p)(x);
#endif
}

OB_DEVICE float ob_float_expm1(float x) {
#ifdef OB_IN_LOOPS
  const float value = (float)ob_grown_f64(x > -40 ? (x < 90 ? x : 90) : -40);
  return x == x && x != 0 ? value : x;
#else
  return OB_LIB(expm1)(x);
#endif
}

OB_DEVICE float ob_float_exp2(float x) {
#ifdef OB_IN_LOOPS
  const double bounded = x > -200 ? (x < 200 ? x : 200) : -200, n = ob_nearest_f64(bounded);
  const float value = (float)(ob_power_of_two_f64(n) * (ob_grown_f64((bounded - n) * 0.6931471805599453) + 1));
  return x == x ? value : x;
#else
  return OB_LIB(exp2)(x);
#endif
}

OB_DEVICE float ob_float_sinh(float x) {
#ifdef OB_IN_LOOPS
  const float size = OB_LIB(fabs)(x);
  const double grown = ob_grown_f64(size < 90 ? size : 90);
  return x == x ? OB_LIB(copysign)((float)(0.5 * (grown + grown / (grown + 1))), x) : x;
#else
  return OB_LIB(sinh)(x);
#endif
}

OB_DEVICE float ob_float_cosh(float x) {
#ifdef OB_IN_LOOPS
  const float size = OB_LIB(fabs)(x);
  const double power = ob_grown_f64(size < 90 ? size : 90) + 1;
  return x == x ? (float)(0.5 * (power + 1 / power)) : x;
#else
  return OB_LIB(cosh)(x);
#endif
}

// For large numbers, some compilers' tanh() returns the number just below 1, not 1. Gradients
// multiply 1 minus its square by numbers that may be large.
OB_DEVICE float ob_float_tanh(float x) {
  return OB_LIB(fabs)(x) > 10 ? OB_LIB(copysign)(1.0f, x) : OB_LIB(tanh)(x);
}

OB_DEVICE float ob_float_asinh(float x) {
#ifdef OB_IN_LOOPS
  const double size = OB_LIB(fabs)(x);
  const float value = (float)ob_positive_log1p_f64(size + size * size / (1 + OB_LIB(sqrt)(1 + size * size)));
  return size < OB_INFINITY ? OB_LIB(copysign)(value, x) : x;
#else
  return OB_LIB(asinh)(x);
#endif
}

OB_DEVICE float ob_float_acosh(float x) {
#ifdef OB_IN_LOOPS
  const double more = (double)x - 1;
  const float value = (float)ob_positive_log1p_f64(more + OB_LIB(sqrt)(2 * more + more * more));
  return x >= 1 ? (x == OB_INFINITY ? x : value) : OB_NAN;
#else
  return OB_LIB(acosh)(x);
#endif
}

OB_DEVICE float ob_float_atanh(float x) {
#ifdef OB_IN_LOOPS
  const double size = OB_LIB(fabs)(x);
  const float value = (float)(0.5 * ob_positive_log1p_f64(2 * size / (1 - size)));
  return size < 1 ? OB_LIB(copysign)(value, x) : size == 1 ? OB_LIB(copysign)(OB_INFINITY, x) : OB_NAN;
#else
  return OB_LIB(atanh)(x);
#endif
}

OB_DEVICE float ob_float_atan(float x) {
#ifdef OB_IN_LOOPS
  const float value = (float)ob_positive_atan_f64(OB_LIB(fabs)((double)x));
  return x == x ? OB_LIB(copysign)(value, x) : x;
#else
  return OB_LIB(atan)(x);
#endif
}

OB_DEVICE float ob_float_asin(float x) {
#ifdef OB_IN_LOOPS
  const double size = OB_LIB(fabs)((double)x);
  const float value = (float)ob_positive_atan_f64(size / OB_LIB(sqrt)((1 - size) * (1 + size)));
  return size <= 1 ? OB_LIB(copysign)(value, x) : OB_NAN;
#else
  return OB_LIB(asin)(x);
#endif
}

OB_DEVICE float ob_float_acos(float x) {
#ifdef OB_IN_LOOPS
  const double value = x;
  const float angle = (float)(2 * ob_positive_atan_f64(OB_LIB(sqrt)((1 - value) / (1 + value))));
  return value >= -1 && value <= 1 ? angle : OB_NAN;
#else
  return OB_LIB(acos)(x);
#endif
}

OB_DEVICE float ob_float_sin(float x) {
#ifdef OB_IN_LOOPS
  ob_i32 quarters;
  const double rest = ob_rest_of_turns_f64(x, &quarters);
  const float turned = ob_sine_of_turns_f64(rest, quarters);
  return OB_LIB(fabs)(x) < OB_INFINITY ? (x < 0 ? -turned : x == 0 ? x : turned) : OB_NAN;
#else
  return OB_LIB(sin)(x);
#endif
}

OB_DEVICE float ob_float_cos(float x) {
#ifdef OB_IN_LOOPS
  ob_i32 quarters;
  const double rest = ob_rest_of_turns_f64(x, &quarters);
  return OB_LIB(fabs)(x) < OB_INFINITY ? ob_sine_of_turns_f64(rest, quarters + 1) : OB_NAN;
#else
  return OB_LIB(cos)(x);
#endif
}

OB_DEVICE float ob_float_tan(float x) {
#ifdef OB_IN_LOOPS
  ob_i32 quarters;
  const double rest = ob_rest_of_turns_f64(x, &quarters);
  const double sine = ob_sine_f64(rest), cosine = ob_cosine_f64(rest);
  const float value = (float)((quarters & 1) != 0 ? -cosine / sine : sine / cosine);
  return OB_LIB(fabs)(x) < OB_INFINITY ? (x < 0 ? -value : x == 0 ? x : value) : OB_NAN;
#else
  return OB_LIB(tan)(x);
#endif
}

// exp(x^2) * erfc(x) * (1 + 2 x) is a polynomial of t, fitted to 1e-10. The terms are written out,
// because compilers would not vectorize a loop over them.
// family T, S: double, f64
#ifdef OB_IN_LOOPS
OB_DEVICE T ob_positive_erfc_S(T x) {
  const T t = (x - 3.75) / (x + 3.75);
  T sum = -6.352403800565816e-06;
  sum = sum * t + 1.8521947684171796e-05;
  sum = sum * t + 4.4280132334295055e-05;
  sum = sum * t - 0.000284313076659066;
  sum = sum * t + 0.0002995965126205942;
  sum = sum * t + 0.0017511576303034383;
  sum = sum * t - 0.009749243358008421;
  sum = sum * t + 0.02836410511677474;
  sum = sum * t - 0.05869273583256606;
  sum = sum * t + 0.0923039375384369;
  sum = sum * t - 0.10880401165966444;
  sum = sum * t + 0.08227677399008054;
  sum = sum * t + 0.0035854193209470947;
  sum = sum * t - 0.14024059953590837;
  sum = sum * t + 1.2375126308081401;
  const T n = ob_nearest_S(x * x * 1.4426950408889634);
  const T power = ob_power_of_two_S(-n) * (ob_grown_S(n * 0.6931471805599453 - x * x) + 1);
  return sum / (1 + 2 * x) * power;
}
#endif

OB_DEVICE float ob_float_erfc(float x) {
#ifdef OB_IN_LOOPS
  const float size = OB_LIB(fabs)(x);
  const double value = ob_positive_erfc_f64(size < 20 ? size : 20);
  return x == x ? (float)(x < 0 ? 2 - value : value) : x;
#else
  return OB_LIB(erfc)(x);
#endif
}
