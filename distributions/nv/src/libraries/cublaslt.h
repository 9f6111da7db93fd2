// SPDX-License-Identifier: BSD-3-Clause
// The part of cuBLASLt that this driver uses, declared here so that it builds without it. The
// library is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../cuda.h"

namespace nv::cublaslt {

using Handle = struct HandleOpaque*;
using Description = struct DescriptionOpaque*;  // of a product
using Layout = struct LayoutOpaque*;            // of a matrix
using Preference = struct PreferenceOpaque*;

struct Algorithm {
  uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

static_assert(sizeof(Heuristic) == 96);

// Name in the table and, after "cublasLt", of the symbol; parameters. All
// return a status, 0 for success.
#define OB_CUBLASLT_FUNCTIONS(X)                                                                                      \
  X(Create, (Handle*))                                                                                                \
  X(Destroy, (Handle))                                                                                                \
  X(MatmulDescCreate, (Description*, int, int))                                                                       \
  X(MatmulDescDestroy, (Description))                                                                                 \
  X(MatmulDescSetAttribute, (Description, int, const void*, size_t))                                                  \
  X(MatrixLayoutCreate, (Layout*, int, uint64_t, uint64_t, int64_t))                                                  \
  X(MatrixLayoutDestroy, (Layout))                                                                                    \
  X(MatrixLayoutSetAttribute, (Layout, int, const void*, size_t))                                                     \
  X(MatmulPreferenceCreate, (Preference*))                                                                            \
  X(MatmulPreferenceDestroy, (Preference))                                                                            \
  X(MatmulPreferenceSetAttribute, (Preference, int, const void*, size_t))                                             \
  X(MatmulAlgoGetHeuristic,                                                                                           \
    (Handle, Description, Layout, Layout, Layout, Layout, Preference, int, Heuristic*, int*))                         \
  X(Matmul, (Handle, Description, const void*, const void*, Layout, const void*, Layout, const void*, const void*,    \
             Layout, void*, Layout, const Algorithm*, void*, size_t, CUstream))

struct Library {
#define OB_CUBLASLT_MEMBER(name, parameters) int(*name) parameters = nullptr;
  OB_CUBLASLT_FUNCTIONS(OB_CUBLASLT_MEMBER)
#undef OB_CUBLASLT_MEMBER
  const char* (*GetStatusName)(int) = nullptr;  // "CUBLAS_STATUS_NOT_SUPPORTED"
};

enum : int {
  kReal32 = 0,
  kReal64 = 1,
  kReal16 = 2,
  kBFloat16 = 14,
  kCompute32 = 68,
  kCompute64 = 70,
  kComputeTf32 = 77,  // factors of float32 are rounded to TF32
  kTransposeA = 3,
  kTransposeB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
  kEpilogueBias = 4,
  kBatchCount = 5,
  kBatchStep = 6,
  kWorkspaceBytes = 1,
  kAlignmentA = 5,  // and of B, C and D after it
  kOperationTransposed = 1
};

// Return the library, opened at the process's first call from the file `path` or, if that is "", by
// the usual names. Return null, with the reason, if it is missing or too old.
const Library* load(const std::string& path, std::string* out_error);

}  // namespace nv::cublaslt
