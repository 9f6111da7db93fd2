// SPDX-License-Identifier: BSD-3-Clause
// Bessel functions of both kinds (plain, modified and spherical) and the Airy function.
// scripts/prelude_tables writes the tables, which are from Cephes, with torch's values.

// Sums with the coefficients of a table: a polynomial, highest power first, and a Chebyshev series.
// family T, S: float, f32; double, f64
OB_FOR_TABLES OB_DEVICE T ob_poly_S(OB_TABLE_OF(T, table), int count, T x) {
  T sum = table[0];
  for (int i = 1; i < count; ++i) sum = sum * x + table[i];
  return sum;
}
// A Chebyshev series, by Clenshaw's algorithm.
OB_FOR_TABLES OB_DEVICE T ob_chebyshev_S(OB_TABLE_OF(T, table), int count, T x) {
  T a = table[0], b = 0, c = 0;
  for (int i = 1; i < count; ++i) {
    c = b;
    b = a;
    a = x * b - c + table[i];
  }
  return (T)0.5 * (a - c);
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_j0_pp_S[] = {
    0.0007969367292973471, 0.08283523921074408, 1.239533716464143, 5.447250030587687, 8.74716500199817,
    5.303240382353949, 1.0};
OB_TABLE T ob_j0_pq_S[] = {
    0.0009244088105588637, 0.08562884743544745, 1.2535274390105895, 5.470977403304171, 8.761908832370695,
    5.306052882353947, 1.0};
OB_TABLE T ob_j0_qp_S[] = {
    -0.011366383889846916, -1.2825271867050931, -19.553954425773597, -93.20601521237683,
    -177.68116798048806, -147.07750515495118, -51.41053267665993, -6.050143506007285};
OB_TABLE T ob_j0_qq_S[] = {
    64.3178256118178, 856.4300259769806, 3882.4018360540163, 7240.467741956525, 5930.727011873169,
    2062.0933166032783, 242.0057402402914};
// For x > 5, from the modulus and the phase.
OB_DEVICE T ob_bessel_far0_S(T x, bool is_second) {
  const T z = (T)25 / (x * x);
  const T p = ob_poly_S(ob_j0_pp_S, 7, z) / ob_poly_S(ob_j0_pq_S, 7, z);
  const T q = (T)5 / x * ob_poly_S(ob_j0_qp_S, 8, z) / ob_poly_S(ob_j0_qq_S, 7, z);
  const T phase = x - (T)0.7853981633974483;
  const T sine = OB_LIB(sin)(phase), cosine = OB_LIB(cos)(phase);
  const T wave = is_second ? p * sine + q * cosine : p * cosine - q * sine;
  return wave * (T)0.7978845608028654 / OB_LIB(sqrt)(x);
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_j0_rp_S[] = {
    -4794432209.782018, 1956174919465.5657, -249248344360967.72, 9708622510473064.0};
OB_TABLE T ob_j0_rq_S[] = {
    499.563147152651, 173785.4016763747, 48440965.83399621, 11185553704.535683, 2112775201154.892,
    310518229857422.56, 3.1812195594320496e+16, 1.7108629408104315e+18};
OB_DEVICE T ob_bessel_j0_S(T x) {
  x = OB_LIB(fabs)(x);
  if (!(x <= 5)) return ob_bessel_far0_S(x, (bool)0);
  const T z = x * x;
  if (x < (T)1e-5) return 1 - z / 4;
  const T roots = (z - (T)5.783185962946785) * (z - (T)30.471262343662087);
  return roots * ob_poly_S(ob_j0_rp_S, 4, z) / ob_poly_S(ob_j0_rq_S, 8, z);
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_y0_yp_S[] = {
    15592.436785523574, -14663929.59039716, 5435264770.518765, -982136065717.9115, 87590639439536.7,
    -3466283033847297.0, 4.4273326857256984e+16, -1.8495080043698668e+16};
OB_TABLE T ob_y0_yq_S[] = {
    1041.2835366425984, 626107.330137135, 268919633.39381415, 86400248710.3935, 20297961275010.555,
    3171577528429750.5, 2.5059625617265306e+17};
OB_DEVICE T ob_bessel_y0_S(T x) {
  if (!(x <= 5)) return ob_bessel_far0_S(x, (bool)1);
  if (x == 0) return -(T)OB_INFINITY;
  if (x < 0) return (T)OB_NAN;
  const T z = x * x;
  const T rest = ob_poly_S(ob_y0_yp_S, 8, z) / ob_poly_S(ob_y0_yq_S, 7, z);
  return rest + (T)0.6366197723675814 * OB_LIB(log)(x) * ob_bessel_j0_S(x);
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_j1_pp_S[] = {
    0.0007621256162081731, 0.07313970569409176, 1.1271960812968493, 5.112079511468076, 8.424045901417724,
    5.214515986823615, 1.0};
OB_TABLE T ob_j1_pq_S[] = {
    0.0005713231280725487, 0.06884559087544954, 1.105142326340617, 5.073863861286015, 8.399855543276042,
    5.209828486823619, 1.0};
OB_TABLE T ob_j1_qp_S[] = {
    0.05108625947501766, 4.982138729512334, 75.82382841325453, 366.7796093601508, 710.8563049989261,
    597.4896124006136, 211.68875710057213, 25.207020585802372};
OB_TABLE T ob_j1_qq_S[] = {
    74.23732770356752, 1056.4488603826283, 4986.410583376536, 9562.318924047562, 7997.041604473507,
    2826.1927851763908, 336.0936078106983};
// For x > 5, from the modulus and the phase.
OB_DEVICE T ob_bessel_far1_S(T x, bool is_second) {
  const T z = (T)25 / (x * x);
  const T p = ob_poly_S(ob_j1_pp_S, 7, z) / ob_poly_S(ob_j1_pq_S, 7, z);
  const T q = (T)5 / x * ob_poly_S(ob_j1_qp_S, 8, z) / ob_poly_S(ob_j1_qq_S, 7, z);
  const T phase = x - (T)2.356194490192345;
  const T sine = OB_LIB(sin)(phase), cosine = OB_LIB(cos)(phase);
  const T wave = is_second ? p * sine + q * cosine : p * cosine - q * sine;
  return wave * (T)0.7978845608028654 / OB_LIB(sqrt)(x);
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_j1_rp_S[] = {
    -899971225.7055594, 452228297998.19403, -72749424522181.83, 3682957328638529.0};
OB_TABLE T ob_j1_rq_S[] = {
    620.8364781180543, 256987.25675774884, 83514679.14319493, 22151159547.97925, 4749141220799.914,
    784369607876235.9, 8.952223361846274e+16, 5.322786203326801e+18};
OB_DEVICE T ob_bessel_j1_S(T given) {
  const T x = OB_LIB(fabs)(given);
  const T z = x * x;
  const T roots = (z - (T)14.681970642123893) * (z - (T)49.2184563216946);
  const T near = x * roots * ob_poly_S(ob_j1_rp_S, 4, z) / ob_poly_S(ob_j1_rq_S, 8, z);
  const T value = x <= 5 ? near : ob_bessel_far1_S(x, (bool)0);
  return given < 0 ? -value : value;
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_y1_yp_S[] = {
    1263204747.9017804, -647355876379.1603, 114509511541823.73, -8127702555013251.0, 2.024394757135949e+17,
    -7.788771962659501e+17};
OB_TABLE T ob_y1_yq_S[] = {
    594.3015923461282, 235564.09294306856, 73481194.44597217, 18760131610.870617, 3882312774962.3857,
    620557727146953.8, 6.871410873553005e+16, 3.9727060811656064e+18};
OB_DEVICE T ob_bessel_y1_S(T x) {
  if (!(x <= 5)) return ob_bessel_far1_S(x, (bool)1);
  if (x == 0) return -(T)OB_INFINITY;
  if (x < 0) return (T)OB_NAN;
  const T z = x * x;
  const T rest = x * ob_poly_S(ob_y1_yp_S, 6, z) / ob_poly_S(ob_y1_yq_S, 8, z);
  return rest + (T)0.6366197723675814 * (ob_bessel_j1_S(x) * OB_LIB(log)(x) - 1 / x);
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_i0_near_S[] = {
    -4.4153416464793395e-18, 3.3307945188222384e-17, -2.431279846547955e-16, 1.715391285555133e-15,
    -1.1685332877993451e-14, 7.676185498604936e-14, -4.856446783111929e-13, 2.95505266312964e-12,
    -1.726826291441556e-11, 9.675809035373237e-11, -5.189795601635263e-10, 2.6598237246823866e-09,
    -1.300025009986248e-08, 6.046995022541919e-08, -2.670793853940612e-07, 1.1173875391201037e-06,
    -4.4167383584587505e-06, 1.6448448070728896e-05, -5.754195010082104e-05, 0.00018850288509584165,
    -0.0005763755745385824, 0.0016394756169413357, -0.004324309995050576, 0.010546460394594998,
    -0.02373741480589947, 0.04930528423967071, -0.09490109704804764, 0.17162090152220877,
    -0.3046826723431984, 0.6767952744094761};
OB_TABLE T ob_i0_far_S[] = {
    -7.233180487874754e-18, -4.830504485944182e-18, 4.46562142029676e-17, 3.461222867697461e-17,
    -2.8276239805165836e-16, -3.425485619677219e-16, 1.7725601330565263e-15, 3.8116806693526224e-15,
    -9.554846698828307e-15, -4.150569347287222e-14, 1.54008621752141e-14, 3.8527783827421426e-13,
    7.180124451383666e-13, -1.7941785315068062e-12, -1.3215811840447713e-11, -3.1499165279632416e-11,
    1.1889147107846439e-11, 4.94060238822497e-10, 3.3962320257083865e-09, 2.266668990498178e-08,
    2.0489185894690638e-07, 2.8913705208347567e-06, 6.889758346916825e-05, 0.0033691164782556943,
    0.8044904110141088};
// Multiplied by exp(-|x|).
OB_DEVICE T ob_i0e_S(T x) {
  x = OB_LIB(fabs)(x);
  if (x <= 8) return ob_chebyshev_S(ob_i0_near_S, 30, x / 2 - 2);
  return ob_chebyshev_S(ob_i0_far_S, 25, 32 / x - 2) / OB_LIB(sqrt)(x);
}
OB_DEVICE T ob_i0_S(T x) { return OB_LIB(exp)(OB_LIB(fabs)(x)) * ob_i0e_S(x); }
OB_DEVICE T ob_modified_bessel_i0_S(T x) { return ob_i0_S(x); }

// family T, S: float, f32; double, f64
OB_TABLE T ob_k0_near_S[] = {
    1.374465435613523e-16, 4.25981614279661e-14, 1.0349695257633842e-11, 1.904516377220209e-09,
    2.5347910790261494e-07, 2.286212103119452e-05, 0.001264615411446926, 0.0359799365153615,
    0.3442898999246285, -0.5353273932339028};
OB_TABLE T ob_k0_far_S[] = {
    5.300433772686263e-18, -1.6475804301524212e-17, 5.2103915050390274e-17, -1.678231096805412e-16,
    5.512055978524319e-16, -1.848593377343779e-15, 6.3400764774050706e-15, -2.2275133269916698e-14,
    8.032890775363575e-14, -2.9800969231727303e-13, 1.140340588208475e-12, -4.514597883373944e-12,
    1.8559491149547177e-11, -7.957489244477107e-11, 3.577397281400301e-10, -1.69753450938906e-09,
    8.574034017414225e-09, -4.660489897687948e-08, 2.766813639445015e-07, -1.8317555227191195e-06,
    1.39498137188765e-05, -0.00012849549581627802, 0.0015698838857300533, -0.0314481013119645,
    2.4403030820659555};
// For x <= 2; for larger x, multiplied by exp(x).
OB_DEVICE T ob_k0_near_of_S(T x) {
  const T sum = ob_chebyshev_S(ob_k0_near_S, 10, x * x - 2);
  return sum - OB_LIB(log)(x / 2) * ob_i0_S(x);
}
OB_DEVICE T ob_k0_far_of_S(T x) { return ob_chebyshev_S(ob_k0_far_S, 25, 8 / x - 2) / OB_LIB(sqrt)(x); }
OB_DEVICE T ob_modified_bessel_k0_S(T x) {
  if (!(x > 0)) return x == 0 ? (T)OB_INFINITY : (T)OB_NAN;
  return x <= 2 ? ob_k0_near_of_S(x) : OB_LIB(exp)(-x) * ob_k0_far_of_S(x);
}
OB_DEVICE T ob_scaled_modified_bessel_k0_S(T x) {
  if (!(x > 0)) return x == 0 ? (T)OB_INFINITY : (T)OB_NAN;
  return x <= 2 ? ob_k0_near_of_S(x) * OB_LIB(exp)(x) : ob_k0_far_of_S(x);
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_i1_near_S[] = {
    2.7779141127610464e-18, -2.111421214358166e-17, 1.5536319577362005e-16, -1.1055969477353862e-15,
    7.600684294735408e-15, -5.042185504727912e-14, 3.223793365945575e-13, -1.9839743977649436e-12,
    1.1736186298890901e-11, -6.663489723502027e-11, 3.625590281552117e-10, -1.8872497517228294e-09,
    9.381537386495773e-09, -4.445059128796328e-08, 2.0032947535521353e-07, -8.568720264695455e-07,
    3.4702513081376785e-06, -1.3273163656039436e-05, 4.781565107550054e-05, -0.00016176081582589674,
    0.0005122859561685758, -0.0015135724506312532, 0.004156422944312888, -0.010564084894626197,
    0.024726449030626516, -0.05294598120809499, 0.1026436586898471, -0.17641651835783406,
    0.25258718644363365};
OB_TABLE T ob_i1_far_S[] = {
    7.517296310842105e-18, 4.414348323071708e-18, -4.6503053684893586e-17, -3.209525921993424e-17,
    2.96262899764595e-16, 3.3082023109209285e-16, -1.8803547755107825e-15, -3.8144030724370075e-15,
    1.0420276984128802e-14, 4.272440016711951e-14, -2.1015418427726643e-14, -4.0835511110921974e-13,
    -7.198551776245908e-13, 2.0356285441470896e-12, 1.4125807436613782e-11, 3.2526035830154884e-11,
    -1.8974958123505413e-11, -5.589743462196584e-10, -3.835380385964237e-09, -2.6314688468895196e-08,
    -2.512236237870209e-07, -3.882564808877691e-06, -0.00011058893876262371, -0.009761097491361469,
    0.7785762350182801};
OB_DEVICE T ob_i1e_S(T given) {
  const T x = OB_LIB(fabs)(given);
  const T near = x * ob_chebyshev_S(ob_i1_near_S, 29, x / 2 - 2);
  const T value = x <= 8 ? near : ob_chebyshev_S(ob_i1_far_S, 25, 32 / x - 2) / OB_LIB(sqrt)(x);
  return given < 0 ? -value : value;
}
OB_DEVICE T ob_i1_S(T x) { return OB_LIB(exp)(OB_LIB(fabs)(x)) * ob_i1e_S(x); }
OB_DEVICE T ob_modified_bessel_i1_S(T x) { return ob_i1_S(x); }

// family T, S: float, f32; double, f64
OB_TABLE T ob_k1_near_S[] = {
    -7.023863479386288e-18, -2.427449850519366e-15, -6.666901694199329e-13, -1.4114883926335278e-10,
    -2.213387630734726e-08, -2.4334061415659684e-06, -0.0001730288957513052, -0.006975723859639864,
    -0.12261118082265715, -0.3531559607765449, 1.5253002273389478};
OB_TABLE T ob_k1_far_S[] = {
    -5.756744483665017e-18, 1.7940508731475592e-17, -5.689462558442859e-17, 1.838093544366639e-16,
    -6.057047248373319e-16, 2.038703165624334e-15, -7.019837090418314e-15, 2.4771544244813043e-14,
    -8.976705182324994e-14, 3.3484196660784293e-13, -1.2891739609510289e-12, 5.13963967348173e-12,
    -2.1299678384275683e-11, 9.218315187605006e-11, -4.1903547593418965e-10, 2.015049755197033e-09,
    -1.0345762465678097e-08, 5.7410841254500495e-08, -3.5019606030878126e-07, 2.406484947837217e-06,
    -1.936197974166083e-05, 0.00019521551847135162, -0.002857816859622779, 0.10392373657681724,
    2.7206261904844427};
// For x <= 2; for larger x, multiplied by exp(x).
OB_DEVICE T ob_k1_near_of_S(T x) {
  const T sum = ob_chebyshev_S(ob_k1_near_S, 11, x * x - 2);
  return OB_LIB(log)(x / 2) * ob_i1_S(x) + sum / x;
}
OB_DEVICE T ob_k1_far_of_S(T x) { return ob_chebyshev_S(ob_k1_far_S, 25, 8 / x - 2) / OB_LIB(sqrt)(x); }
OB_DEVICE T ob_modified_bessel_k1_S(T x) {
  if (!(x > 0)) return x == 0 ? (T)OB_INFINITY : (T)OB_NAN;
  return x <= 2 ? ob_k1_near_of_S(x) : OB_LIB(exp)(-x) * ob_k1_far_of_S(x);
}
OB_DEVICE T ob_scaled_modified_bessel_k1_S(T x) {
  if (!(x > 0)) return x == 0 ? (T)OB_INFINITY : (T)OB_NAN;
  return x <= 2 ? ob_k1_near_of_S(x) * OB_LIB(exp)(x) : ob_k1_far_of_S(x);
}

// family T, S: float, f32; double, f64
OB_DEVICE T ob_spherical_bessel_j0_S(T x) {
  if (OB_LIB(fabs)(x) == (T)OB_INFINITY) return 0;
  if (!(OB_LIB(fabs)(x) < (T)0.5)) return OB_LIB(sin)(x) / x;
  const T z = x * x;
  T sum = 1;
  for (int n = 12; n > 0; n -= 2) sum = 1 - sum * z / (T)(n * (n + 1));
  return sum;
}

// family T, S: float, f32; double, f64
OB_TABLE T ob_airy_an_S[] = {
    0.346538101525629, 12.007595273964581, 76.27960536152345, 168.08922493463058, 159.75639135016442,
    70.53609068404442, 14.026469116338967, 1.0};
OB_TABLE T ob_airy_ad_S[] = {
    0.5675945326387702, 14.75625625848472, 84.51389701414746, 177.31808814540045, 164.2346928715297,
    71.47784008255756, 14.095913560783403, 1.0};
OB_TABLE T ob_airy_afn_S[] = {
    -0.1316963234183318, -0.6264565444319123, -0.6931580360369335, -0.2797799815451191,
    -0.04919001326095003, -0.004062659235948854, -0.0001592764962392621, -2.776491081552329e-06,
    -1.6778769848911465e-08};
OB_TABLE T ob_airy_afd_S[] = {
    13.356042070655324, 32.682503279522464, 26.736704094149957, 9.187074029072596, 1.4752914677166642,
    0.11568717379518804, 0.004402916416152112, 7.547203482874142e-05, 4.5185009297058035e-07};
OB_TABLE T ob_airy_agn_S[] = {
    0.01973399320916857, 0.39110302961568827, 1.0657989759959559, 0.9391692298166502, 0.35146565610554764,
    0.06338889196289255, 0.005858041130483885, 0.000282851600836737, 6.98793669997261e-06,
    8.117892395543892e-08, 3.415517847659236e-10};
OB_TABLE T ob_airy_agd_S[] = {
    9.30892908077442, 19.835292871831214, 15.564662893286462, 5.476860694229755, 0.9542936116189619,
    0.08645808263523921, 0.004126565238242226, 0.00010125908511650914, 1.1716673321441352e-06,
    4.9183457006293e-09};
OB_DEVICE T ob_airy_ai_S(T x) {
  if (OB_LIB(fabs)(x) == (T)OB_INFINITY) return (T)OB_NAN;
  if (x > (T)103.892) return 0;
  if (x < (T)-2.09) {
    const T root = OB_LIB(sqrt)(-x);
    const T angle = -2 * x * root / 3;
    const T z = 1 / angle, w = z * z;
    const T f = 1 + w * ob_poly_S(ob_airy_afn_S, 9, w) / ob_poly_S(ob_airy_afd_S, 9, w);
    const T g = z * ob_poly_S(ob_airy_agn_S, 11, w) / ob_poly_S(ob_airy_agd_S, 10, w);
    const T phase = angle + (T)0.7853981633974483;
    return (T)0.5641895835477563 / OB_LIB(sqrt)(root) * (OB_LIB(sin)(phase) * f - OB_LIB(cos)(phase) * g);
  }
  if (x >= (T)2.09) {
    const T root = OB_LIB(sqrt)(x);
    const T zeta = 2 * x * root / 3;
    const T f = ob_poly_S(ob_airy_an_S, 8, 1 / zeta) / ob_poly_S(ob_airy_ad_S, 8, 1 / zeta);
    return (T)0.5641895835477563 * f / (2 * OB_LIB(sqrt)(root) * OB_LIB(exp)(zeta));
  }
  // Power series in x^3 for each of the two solutions; 18 terms reach the last bit of a double in
  // this range.
  const T z = x * x * x;
  T f = 1, g = x, m = 1, n = x;
  for (int k = 3; k <= 54; k += 3) {
    m *= z / (T)(k * (k - 1));
    n *= z / (T)(k * (k + 1));
    f += m;
    g += n;
  }
  return (T)0.3550280538878172 * f - (T)0.2588194037928068 * g;
}
