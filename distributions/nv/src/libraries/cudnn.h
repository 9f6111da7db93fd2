// SPDX-License-Identifier: BSD-3-Clause
// The part of cuDNN 9 that this driver uses, declared here so that it builds without it. The
// library is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../cuda.h"

namespace nv::cudnn {

using Handle = struct HandleOpaque*;
using Descriptor = void*;  // of the graph API

// Name in the table and, after "cudnn", of the symbol; parameters. All
// return a status, 0 for success.
#define OB_CUDNN_FUNCTIONS(X)                                                                                      \
  X(Create, (Handle*))                                                                                             \
  X(Destroy, (Handle))                                                                                             \
  X(SetStream, (Handle, CUstream))                                                                                 \
  X(BackendCreateDescriptor, (int, Descriptor*))                                                                   \
  X(BackendDestroyDescriptor, (Descriptor))                                                                        \
  X(BackendFinalize, (Descriptor))                                                                                 \
  X(BackendSetAttribute, (Descriptor, int, int, int64_t, const void*))                                             \
  X(BackendGetAttribute, (Descriptor, int, int, int64_t, int64_t*, void*))                                         \
  X(BackendExecute, (Handle, Descriptor, Descriptor))

// Descriptors of recurrent nets.
using RnnDescriptor = struct RnnOpaque*;
using RnnDataDescriptor = struct RnnDataOpaque*;
using TensorDescriptor = struct TensorOpaque*;
using DropoutDescriptor = struct DropoutOpaque*;

// The functions for recurrent nets, which a library may lack.
#define OB_CUDNN_RECURRENT_FUNCTIONS(X)                                                                              \
  X(CreateRNNDescriptor, (RnnDescriptor*))                                                                           \
  X(DestroyRNNDescriptor, (RnnDescriptor))                                                                           \
  X(SetRNNDescriptor_v8, (RnnDescriptor, int algorithm, int cell, int biases, int directions, int input, int type,   \
                          int compute, int math, int32_t width, int32_t cells, int32_t states, int32_t layers,       \
                          DropoutDescriptor, uint32_t))                                                              \
  X(CreateRNNDataDescriptor, (RnnDataDescriptor*))                                                                   \
  X(DestroyRNNDataDescriptor, (RnnDataDescriptor))                                                                   \
  X(SetRNNDataDescriptor, (RnnDataDescriptor, int type, int layout, int steps, int batch, int width,                 \
                           const int* lengths, void*))                                                               \
  X(CreateDropoutDescriptor, (DropoutDescriptor*))                                                                   \
  X(DestroyDropoutDescriptor, (DropoutDescriptor))                                                                   \
  X(SetDropoutDescriptor, (DropoutDescriptor, Handle, float, void* states, size_t bytes, unsigned long long seed))   \
  X(CreateTensorDescriptor, (TensorDescriptor*))                                                                     \
  X(DestroyTensorDescriptor, (TensorDescriptor))                                                                     \
  X(SetTensorNdDescriptor, (TensorDescriptor, int type, int dims, const int* sizes, const int* strides))             \
  X(GetRNNWeightSpaceSize, (Handle, RnnDescriptor, size_t*))                                                         \
  X(GetRNNWeightParams, (Handle, RnnDescriptor, int32_t layer, size_t, const void* weights, int32_t id,              \
                         TensorDescriptor, void** matrix, TensorDescriptor, void** bias))                            \
  X(GetRNNTempSpaceSizes, (Handle, RnnDescriptor, int mode, RnnDataDescriptor, size_t* workspace, size_t* reserve))  \
  X(RNNForward, (Handle, RnnDescriptor, int mode, const int32_t* lengths, RnnDataDescriptor, const void* x,          \
                 RnnDataDescriptor, void* y, TensorDescriptor, const void* hx, void* hy, TensorDescriptor,           \
                 const void* cx, void* cy, size_t, const void* weights, size_t, void* workspace, size_t,             \
                 void* reserve))                                                                                     \
  X(RNNBackwardData_v8, (Handle, RnnDescriptor, const int32_t* lengths, RnnDataDescriptor, const void* y,            \
                         const void* dy, RnnDataDescriptor, void* dx, TensorDescriptor, const void* hx,              \
                         const void* dhy, void* dhx, TensorDescriptor, const void* cx, const void* dcy, void* dcx,   \
                         size_t, const void* weights, size_t, void* workspace, size_t, void* reserve))               \
  X(RNNBackwardWeights_v8, (Handle, RnnDescriptor, int mode, const int32_t* lengths, RnnDataDescriptor,              \
                            const void* x, TensorDescriptor, const void* hx, RnnDataDescriptor, const void* y,       \
                            size_t, void* dweights, size_t, void* workspace, size_t, void* reserve))

struct Library {
#define OB_CUDNN_MEMBER(name, parameters) int(*name) parameters = nullptr;
  OB_CUDNN_FUNCTIONS(OB_CUDNN_MEMBER)
  OB_CUDNN_RECURRENT_FUNCTIONS(OB_CUDNN_MEMBER)
#undef OB_CUDNN_MEMBER
  const char* (*GetErrorString)(int) = nullptr;
  void (*GetLastErrorString)(char*, size_t) = nullptr;
  size_t version = 0;  // 91900 for 9.19.0
  bool has_recurrent = false;

  // Return the status's name with cuDNN's sentence about this thread's last failure.
  std::string describe(int status) const;
};

// Return true for a status that says that cuDNN refuses what it was asked: a bad
// parameter, or something not supported.
constexpr bool is_refusal(int status) {
  return status / 1000 == 2 || status / 1000 == 3;
}

enum : int {
  // Data types.
  kFloat = 0,
  kDouble = 1,
  kHalf = 2,
  kInt32 = 4,
  kBFloat16 = 9,
  kInt64 = 10,
  kBoolean = 11,
  // Types of attributes.
  kTypeHandle = 0,
  kTypeData = 1,
  kTypeBoolean = 2,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypeDouble = 5,
  kTypePointer = 6,
  kTypeConvolutionMode = 7,
  kTypeHeuristicMode = 8,
  kTypeNumericalNote = 11,
  kTypePointwiseMode = 14,
  kTypeDescriptor = 15,
  kTypeReduction = 18,
  kTypeBehaviorNote = 19,
  kTypeChar = 24,
  kTypeDistribution = 29,
  // Kinds of descriptors.
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kExecutionPlan = 5,
  kForwardOperation = 10,
  kFilterOperation = 11,
  kDataOperation = 12,
  kPointwiseOperation = 13,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kProduct = 18,
  kProductOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kReshapeOperation = 31,
  kDraw = 32,
  kDrawOperation = 33,
  // Attributes.
  kPointwiseMode = 0,
  kPointwiseCompute = 1,
  kPointwiseAxis = 9,
  kConvolutionCompute = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPadding = 104,
  kConvolutionPrePadding = 105,
  kConvolutionDims = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanText = 405,
  kForwardAlpha = 700,  // and beta, convolution, w, x and y after it
  kDataAlpha = 706,     // and beta, convolution, w, dx and dy
  kFilterAlpha = 712,   // and beta, convolution, dw, x and dy
  kPointwiseDescription = 750,  // and x, b and y after it
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorData = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNumericalNotes = 1303,
  kEngineBehaviorNotes = 1305,
  kProductCompute = 1500,
  kProductA = 1520,  // and b, c and the description after it
  kProductDescription = 1523,
  kReductionOperator = 1600,
  kReductionCompute = 1601,
  kReductionX = 1610,  // and y and the description after it
  kReductionDescription = 1612,
  kReshapeX = 2200,  // and y after it
  kDrawDistribution = 2300,
  kDrawProbability = 2305,
  kDrawY = 2310,  // and the seed, the description and the offset after it
  kDrawSeed = 2311,
  kDrawDescription = 2312,
  kDrawOffset = 2313,
  // Values.
  kCrossCorrelation = 1,
  kHeuristicsFallback = 2,
  kHeuristicsA = 3,
  kNoteTensorCore = 0,
  kNoteDownConvertInputs = 1,
  kNoteNondeterministic = 4,
  kNoteCompiles = 0,  // of behavior
  kAdd = 0,  // of pointwise operations
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kNotLess = 303,
  kIndex = 501,
  kSelect = 601,
  kSum = 0,  // of reductions
  kMax = 3,
  kBernoulli = 0,  // of draws
  // Values of recurrent nets.
  kReluCell = 0,
  kTanhCell = 1,
  kLstmCell = 2,
  kGruCell = 3,
  kStandard = 0,  // algorithms
  kPersistent = 1,
  kPersistentSmall = 3,
  kNoBias = 0,
  kTwoBiases = 2,
  kLinearInput = 0,
  kDefaultMath = 0,
  kTensorMath = 1,
  kExactMath = 3,
  kPadded = 0,  // layouts of sequences, step by step
  kPacked = 1,
  kPaddedIo = 1,  // a flag
  kInference = 0,
  kTraining = 1,
  kAddGradients = 0
};

// Return the library, opened at the process's first call from the file `path` or, if that is "", by
// the usual name. Return null, with the reason, if it is missing or too old.
const Library* load(const std::string& path, std::string* out_error);

}  // namespace nv::cudnn
