# SPDX-License-Identifier: BSD-3-Clause
"""Entries of the operator database that shall pass a check and do not, by check and reason; strict.

A name stands for all element types that are tried, name:type,type for some of them. What is repaired is told as "listed
and passed" by `python -m tests.operators.report`.
"""

from __future__ import annotations

from .gaps import Gap


def _listed(*groups: tuple[str, str]) -> dict[str, list[Gap]]:
    found: dict[str, list[Gap]] = {}
    for reason, words in groups:
        for word in words.split():
            name, _, dtypes = word.partition(":")
            gap = Gap(reason, frozenset(dtypes.split(",")) if dtypes else None)
            found.setdefault(name, []).append(gap)
    return found


ACCEPTED = "an argument is accepted that the CPU refuses"
CSR = "sparse CSR tensors cannot be made on a device of this package; dense and sparse COO tensors can"
LATE = "an argument that is refused is refused only when the work is waited for"
RAISES = "a call that the CPU runs is refused"
SHAPE = "a target of as many elements in another shape is resized"
STRIDES = "an output has other strides than the CPU's"
TWICE = "the meta kernel, which is Python, warns of a resized output once more"
UNDEFINED = "the CPU's kernel gives memory that it has not written: two calls differ"
VALUES = "rounded otherwise than on the CPU, since the kernel writes into other strides"

# fmt: off
NOT_YET: dict[str, dict[str, list[Gap]]] = {
    "forward": _listed(
        (CSR, """
            sparse.mm.reduce sparse.sampled_addmm
            """),
        (RAISES, """
            nn.functional.embedding_bag:bfloat16
            """),
    ),
    "layouts": _listed(
        (CSR, """
            sparse.mm.reduce sparse.sampled_addmm
            """),
        (STRIDES, """
            _batch_norm_with_update _native_batch_norm_legit angle:complex64 complex floor_divide native_batch_norm
            native_dropout_backward nn.functional.batch_norm nn.functional.channel_shuffle nn.functional.conv3d:float32
            nn.functional.conv_transpose3d:float32 nn.functional.logsigmoid nn.functional.max_unpool2d
            nn.functional.max_unpool2d.grad nn.functional.mse_loss nn.functional.nll_loss
            nn.functional.normalize:complex64 nn.functional.pad.reflect nn.functional.pad.replicate
            nn.functional.pad.replicate_negative nn.functional.rrelu normal
            """),
        (UNDEFINED, """
            native_group_norm
            """),
        (VALUES, """
            nn.functional.glu polar
            """),
    ),
    "broadcasting": _listed(
        (ACCEPTED, """
            ldexp:float32
            """),
        (LATE, """
            polar:float32
            """),
    ),
    "out": _listed(
        (CSR, """
            sparse.sampled_addmm
            """),
        (LATE, """
            abs:float16,float32 addmm addmm.decomposed bucketize conj_physical fft.ifft:float32,int8 fft.ihfft frexp
            histc index_select kthvalue linalg.eigh:float32 linalg.eigvals linalg.eigvalsh:complex64,float32
            linalg.solve_triangular mode multinomial nan_to_num:float32 nn.functional.logsigmoid normal ormqr:float32
            searchsorted take:complex64,float32 var:float16
            """),
        (RAISES, """
            mv nn.functional.linear
            """),
        (SHAPE, """
            arange linspace linspace.tensor_overload logspace logspace.tensor_overload
            """),
        (STRIDES, """
            abs:complex64 addr:float32,int8 angle:complex64 linalg.cholesky linalg.cholesky_ex linalg.eig
            linalg.eigh:complex128 linalg.householder_product linalg.inv linalg.inv_ex linalg.ldl_factor
            linalg.ldl_factor_ex linalg.ldl_solve linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.qr
            logit:int64 lu_solve nn.functional.normalize:complex64 ormqr:complex128 qr triangular_solve where
            """),
        (TWICE, """
            addbmm bernoulli cholesky complex fft.fft fft.fft2:float32,int16 fft.hfft fft.hfft2:float32
            fft.hfftn:float64 fft.ifft:complex64 fft.ifft2:bool,float32 fft.ihfft2 fft.irfft2:float32,uint8
            fft.irfftn:complex128 fft.rfft fft.rfft2 floor_divide linalg.eigvalsh:float64 max.reduction_no_dim
            min.reduction_no_dim mvlgamma.mvlgamma_p_1 mvlgamma.mvlgamma_p_3 mvlgamma.mvlgamma_p_5 nanmean polar std
            take:float64 var:complex64,float32
            """),
        (UNDEFINED, """
            _native_batch_norm_legit
            """),
        (VALUES, """
            addr:complex64 logit:float32
            """),
    ),
    "inplace": _listed(
        (ACCEPTED, """
            addr:float32
            """),
        (LATE, """
            conj_physical:complex64 logit:int64
            """),
        (TWICE, """
            addbmm:float32
            """),
    ),
    "settings": _listed(
        (CSR, """
            sparse.mm.reduce sparse.sampled_addmm
            """),
    ),
    "errors": _listed(
        (LATE, """
            masked_fill multinomial narrow_copy native_layer_norm nn.functional.gelu
            """),
    ),
}
# fmt: on
