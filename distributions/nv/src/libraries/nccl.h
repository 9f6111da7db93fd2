// SPDX-License-Identifier: BSD-3-Clause
// The part of NCCL that this driver uses, opened at run time when the first group is made.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

namespace nv {

using ncclComm = struct NcclComm*;
using ncclResult = int;

struct ncclId {
  char bytes[128];
};

// ncclConfig_t up to `splitShare`, as of NCCL 2.18. The library reads no more than `size`
// bytes. INT_MIN is "not given".
struct ncclConfig {
  size_t size = sizeof(ncclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21801;
  int blocking = 0;
  int cgaClusterSize = INT_MIN;
  int minCTAs = INT_MIN;
  int maxCTAs = INT_MIN;
  const char* netName = nullptr;
  int splitShare = INT_MIN;
};

enum : ncclResult { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };

#define OB_NCCL_FUNCTIONS(X)                                                                                     \
  X(GetVersion, (int*))                                                                                          \
  X(GetUniqueId, (ncclId*))                                                                                      \
  X(CommInitRankConfig, (ncclComm*, int, ncclId, int, ncclConfig*))                                              \
  X(CommGetAsyncError, (ncclComm, ncclResult*))                                                                  \
  X(CommFinalize, (ncclComm))                                                                                    \
  X(CommAbort, (ncclComm))                                                                                       \
  X(CommDestroy, (ncclComm))                                                                                     \
  X(AllReduce, (const void*, void*, size_t, int, int, ncclComm, void*))                                          \
  X(Broadcast, (const void*, void*, size_t, int, int, ncclComm, void*))                                          \
  X(Reduce, (const void*, void*, size_t, int, int, int, ncclComm, void*))                                        \
  X(AllGather, (const void*, void*, size_t, int, ncclComm, void*))                                               \
  X(ReduceScatter, (const void*, void*, size_t, int, int, ncclComm, void*))                                      \
  X(Send, (const void*, size_t, int, int, ncclComm, void*))                                                      \
  X(Recv, (void*, size_t, int, int, ncclComm, void*))                                                            \
  X(GroupStart, ())                                                                                              \
  X(GroupEnd, ())                                                                                                \
  X(RedOpCreatePreMulSum, (int*, void*, int, int, ncclComm))                                                     \
  X(RedOpDestroy, (int, ncclComm))

struct Nccl {
#define OB_NCCL_MEMBER(name, parameters) ncclResult(*name) parameters = nullptr;
  OB_NCCL_FUNCTIONS(OB_NCCL_MEMBER)
#undef OB_NCCL_MEMBER
  ncclResult (*CommSplit)(ncclComm, int, int, ncclComm*, ncclConfig*) = nullptr;  // null before NCCL 2.18
  const char* (*GetErrorString)(ncclResult) = nullptr;
  const char* (*GetLastError)(ncclComm) = nullptr;
  int version = 0;

  // Open the library. Return false, with a sentence, if it is missing or older than 2.14.
  bool load(const std::string& library, std::string* out_error);
};

}  // namespace nv
