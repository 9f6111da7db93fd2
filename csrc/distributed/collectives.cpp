// SPDX-License-Identifier: BSD-3-Clause
// The checks of each collective, and its calls of Gloo. Collectives that only move elements move
// bytes, so they accept any dtype.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>

#include "core/error.h"
#include "distributed/backend.h"
#include "distributed/checks.h"
#include "distributed/reduction.h"

namespace outboard {

namespace {

Tensors bytes_of(const Tensors& tensors) {
  Tensors bytes;
  for (const at::Tensor& tensor : tensors) {
    bytes.push_back(as_bytes(tensor));
  }
  return bytes;
}

// Gloo takes a list for each of a rank's devices, and there is one.
std::vector<Tensors> nested(Tensors tensors) {
  return {std::move(tensors)};
}

std::vector<int64_t> joined(std::vector<int64_t> first, const std::vector<int64_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Return the tag under which Gloo exchanges a message of that size. Gloo fills a part of a tensor
// that is larger than the message, and ends the process if it is smaller. So the sizes of messages
// are in their tags, and a receive of another size waits until the timeout. Tags have 31 bits:
// sizes under a large user tag are not distinguished, and two of 16384 sizes may share the same
// bits.
int gloo_tag(const char* name, int tag, size_t bytes) {
  constexpr int kTagBits = 16, kSizeBits = 14, kMark = 1 << (kTagBits + kSizeBits);
  TORCH_CHECK_VALUE(tag >= 0 && tag < kMark, name, " takes a tag from 0 to ", kMark - 1, ", not ", tag);
  if (tag >= 1 << kTagBits) {
    return kMark | tag;
  }
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // spreads near sizes over the upper bits
  return tag << kSizeBits | static_cast<int>((bytes * kGoldenRatio) >> (64 - kSizeBits));
}

}  // namespace

WorkPtr DistributedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& requested) {
  const Kind& kind = kinds::broadcast;
  check_one(kind.name, "the tensor", tensors);
  check_rank(kind.name, "the source", requested.rootRank, getSize());
  Call call{kind,
            tensors,
            {},
            true,
            requested.asyncOp,
            tensors,
            [options = with_timeout(requested)](c10d::Backend& gloo, Tensors& in, Tensors&) -> Works {
              Tensors bytes = bytes_of(in);
              return {gloo.broadcast(bytes, options)};
            }};
  call.root = static_cast<int>(requested.rootRank);
  return submit(std::move(call), native::broadcast(requested.rootRank));
}

WorkPtr DistributedBackend::reduce_in_place(const Kind& kind, const Tensors& tensors,
                                            const c10d::AllreduceOptions& requested) {
  check_tensors(kind.name, tensors);
  check_same_dtype(kind.name, tensors, {});
  const Reduction reduction(requested.reduceOp, tensors.front().scalar_type(), getSize(), kind.name);
  c10d::AllreduceOptions options = with_timeout(requested);
  options.reduceOp = reduction.op();
  Call call{kind,
            tensors,
            {},
            true,
            requested.asyncOp,
            tensors,
            [options, reduction](c10d::Backend& gloo, Tensors& in, Tensors&) {
              Works works;
              for (const at::Tensor& tensor : in) {
                Tensors viewed{reduction.view(tensor)};
                works.push_back(gloo.allreduce(viewed, options));
              }
              return works;
            }};
  if (reduction.adjusts()) {
    call.adjust = [reduction](Tensors& out) {
      for (const at::Tensor& tensor : out) {
        reduction.adjust(tensor);
      }
    };
  }
  call.reduction = reduction.name();
  return submit(std::move(call), native::all_reduce(reduction.native(), reduction.scale()));
}

WorkPtr DistributedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_one(kinds::all_reduce.name, "the tensor", tensors);
  return reduce_in_place(kinds::all_reduce, tensors, options);
}

WorkPtr DistributedBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return reduce_in_place(kinds::all_reduce_coalesced, tensors, options);
}

WorkPtr DistributedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& requested) {
  const Kind& kind = kinds::reduce;
  check_one(kind.name, "the tensor", tensors);
  check_tensors(kind.name, tensors);
  check_rank(kind.name, "the destination", requested.rootRank, getSize());
  const Reduction reduction(requested.reduceOp, tensors.front().scalar_type(), getSize(), kind.name);
  c10d::ReduceOptions options = with_timeout(requested);
  options.reduceOp = reduction.op();
  const bool is_root = getRank() == requested.rootRank;
  // Gloo uses the other ranks' tensors for partial sums, which those ranks must not see.
  const auto post = [options, reduction, is_root](c10d::Backend& gloo, Tensors& in, Tensors&) -> Works {
    Tensors viewed{reduction.view(is_root ? in[0] : in[0].clone())};
    return {gloo.reduce(viewed, options)};
  };
  const auto adjust = [reduction](Tensors& out) {
    if (!out.empty()) {
      reduction.adjust(out[0]);
    }
  };
  Call call{kind, tensors, {}, is_root, requested.asyncOp, tensors, post, adjust};
  call.root = static_cast<int>(requested.rootRank);
  call.reduction = reduction.name();
  return submit(std::move(call), native::reduce(reduction.native(), reduction.scale(), requested.rootRank));
}

WorkPtr DistributedBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& requested) {
  const Kind& kind = kinds::all_gather;
  check_one(kind.name, "the input", inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1, kind.name, " takes one list of outputs, got ", outputs.size());
  check_list(kind.name, "the list of outputs", outputs[0], inputs[0], getSize());
  return submit({kind, inputs, outputs[0], false, requested.asyncOp, outputs[0],
                 [options = with_timeout(requested)](c10d::Backend& gloo, Tensors& in, Tensors& out) -> Works {
                   Tensors from = bytes_of(in);
                   std::vector<Tensors> to = nested(bytes_of(out));
                   return {gloo.allgather(to, from, options)};
                 }},
                native::all_gather_lists());
}

WorkPtr DistributedBackend::all_gather_parts(const Kind& kind, const Tensors& outputs, const Tensors& inputs,
                                             const c10d::AllgatherOptions& requested) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), kind.name, " takes as many outputs as inputs, got ",
                    outputs.size(), " and ", inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_parts(kind.name, outputs[i], inputs[i], getSize());
  }
  return submit({kind, inputs, outputs, false, requested.asyncOp, outputs,
                 [options = with_timeout(requested)](c10d::Backend& gloo, Tensors& in, Tensors& out) {
                   Works works;
                   for (size_t i = 0; i < in.size(); ++i) {
                     at::Tensor to = as_bytes(out[i]), from = as_bytes(in[i]);
                     works.push_back(gloo._allgather_base(to, from, options));
                   }
                   return works;
                 }},
                native::all_gather());
}

WorkPtr DistributedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& options) {
  return all_gather_parts(kinds::all_gather_base, {output}, {input}, options);
}

WorkPtr DistributedBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  return all_gather_parts(kinds::all_gather_coalesced, outputs, inputs, options);
}

WorkPtr DistributedBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& requested) {
  const Kind& kind = kinds::all_gather_lists;
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(getSize()), kind.name, " takes a list for each of the ",
                    getSize(), " ranks, got ", outputs.size());
  Tensors flat;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), kind.name, " takes as many outputs per rank as inputs, got ",
                      list.size(), " and ", inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_list(kind.name, "a list of outputs", {list[i]}, inputs[i], 1);
    }
    flat.insert(flat.end(), list.begin(), list.end());
  }
  return submit({kind, inputs, flat, false, requested.asyncOp, flat,
                 [options = with_timeout(requested)](c10d::Backend& gloo, Tensors& in, Tensors& out) {
                   Works works;
                   for (size_t i = 0; i < in.size(); ++i) {
                     Tensors from{as_bytes(in[i])}, to;
                     for (size_t at = i; at < out.size(); at += in.size()) {
                       to.push_back(as_bytes(out[at]));
                     }
                     std::vector<Tensors> lists = nested(std::move(to));
                     works.push_back(gloo.allgather(lists, from, options));
                   }
                   return works;
                 }},
                native::all_gather_lists());
}

WorkPtr DistributedBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::GatherOptions& requested) {
  const Kind& kind = kinds::gather;
  check_one(kind.name, "the input", inputs);
  check_rank(kind.name, "the destination", requested.rootRank, getSize());
  const bool is_root = getRank() == requested.rootRank;
  const Tensors flat =
      check_list_of_root(kind.name, "the list of outputs", "the destination", outputs, inputs, is_root, getSize());
  Call call{kind,
            inputs,
            flat,
            false,
            requested.asyncOp,
            flat,
            [options = with_timeout(requested), is_root](c10d::Backend& gloo, Tensors& in, Tensors& out) -> Works {
              Tensors from = bytes_of(in);
              std::vector<Tensors> to = is_root ? nested(bytes_of(out)) : std::vector<Tensors>();
              return {gloo.gather(to, from, options)};
            }};
  call.root = static_cast<int>(requested.rootRank);
  return submit(std::move(call), native::gather(requested.rootRank));
}

WorkPtr DistributedBackend::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  const char* const name = "gather_single";
  std::vector<Tensors> outputs;
  Tensors inputs{input};
  check_tensors(name, inputs);
  if (getRank() == options.rootRank) {
    check_tensors(name, {input, output});
    check_parts(name, output, input, getSize());
    TORCH_CHECK_VALUE(output.is_contiguous(), name, " takes a contiguous output, got strides of ", output.strides());
    outputs.push_back(output.detach().view({getSize(), input.numel()}).unbind(0));
  }
  return gather(outputs, inputs, options);
}

WorkPtr DistributedBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ScatterOptions& requested) {
  const Kind& kind = kinds::scatter;
  check_one(kind.name, "the output", outputs);
  check_rank(kind.name, "the source", requested.rootRank, getSize());
  const bool is_root = getRank() == requested.rootRank;
  const Tensors flat =
      check_list_of_root(kind.name, "the list of inputs", "the source", inputs, outputs, is_root, getSize());
  Call call{kind,
            flat,
            outputs,
            false,
            requested.asyncOp,
            outputs,
            [options = with_timeout(requested), is_root](c10d::Backend& gloo, Tensors& in, Tensors& out) -> Works {
              Tensors to = bytes_of(out);
              std::vector<Tensors> from = is_root ? nested(bytes_of(in)) : std::vector<Tensors>();
              return {gloo.scatter(to, from, options)};
            }};
  call.root = static_cast<int>(requested.rootRank);
  return submit(std::move(call), native::scatter(requested.rootRank));
}

WorkPtr DistributedBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ReduceScatterOptions& requested) {
  const Kind& kind = kinds::reduce_scatter;
  check_one(kind.name, "the output", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, kind.name, " takes one list of inputs, got ", inputs.size());
  check_list(kind.name, "the list of inputs", inputs[0], outputs[0], getSize());
  const Reduction reduction(requested.reduceOp, outputs[0].scalar_type(), getSize(), kind.name);
  c10d::ReduceScatterOptions options = with_timeout(requested);
  options.reduceOp = reduction.op();
  const auto post = [options, reduction](c10d::Backend& gloo, Tensors& in, Tensors& out) -> Works {
    Tensors flat;
    for (const at::Tensor& tensor : in) {
      flat.push_back(reduction.view(tensor).flatten());
    }
    at::Tensor from = at::cat(flat), to = reduction.view(out[0]).flatten();
    return {gloo._reduce_scatter_base(to, from, options)};
  };
  const auto adjust = [reduction](Tensors& out) { reduction.adjust(out[0]); };
  Call call{kind, inputs[0], outputs, false, requested.asyncOp, outputs, post, adjust};
  call.reduction = reduction.name();
  return submit(std::move(call), native::reduce_scatter_list(reduction.native(), reduction.scale()));
}

WorkPtr DistributedBackend::reduce_scatter_single(const Kind& kind, const Tensors& outputs, const Tensors& inputs,
                                                  const c10d::ReduceScatterOptions& requested) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !outputs.empty(), kind.name,
                    " takes as many outputs as inputs, got ", outputs.size(), " and ", inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_parts(kind.name, inputs[i], outputs[i], getSize());
  }
  check_same_dtype(kind.name, inputs, outputs);
  const Reduction reduction(requested.reduceOp, outputs[0].scalar_type(), getSize(), kind.name);
  c10d::ReduceScatterOptions options = with_timeout(requested);
  options.reduceOp = reduction.op();
  const auto post = [options, reduction](c10d::Backend& gloo, Tensors& in, Tensors& out) {
    Works works;
    for (size_t i = 0; i < in.size(); ++i) {
      at::Tensor to = reduction.view(out[i]).flatten(), from = reduction.view(in[i]).flatten();
      works.push_back(gloo._reduce_scatter_base(to, from, options));
    }
    return works;
  };
  const auto adjust = [reduction](Tensors& out) {
    for (const at::Tensor& tensor : out) {
      reduction.adjust(tensor);
    }
  };
  Call call{kind, inputs, outputs, false, requested.asyncOp, outputs, post, adjust};
  call.reduction = reduction.name();
  return submit(std::move(call), native::reduce_scatter(reduction.native(), reduction.scale()));
}

WorkPtr DistributedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_single(kinds::reduce_scatter_base, {output}, {input}, options);
}

WorkPtr DistributedBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_single(kinds::reduce_scatter_coalesced, outputs, inputs, options);
}

WorkPtr DistributedBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                          std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& requested) {
  const Kind& kind = kinds::all_to_all_base;
  check_same_dtype(kind.name, {input}, {output});
  const std::vector<int64_t> to_sizes = split_bytes(kind.name, "the output", output, output_splits, getSize());
  const std::vector<int64_t> from_sizes = split_bytes(kind.name, "the input", input, input_splits, getSize());
  Call call{kind,
            {input},
            {output},
            false,
            requested.asyncOp,
            {output},
            [=, options = with_timeout(requested)](c10d::Backend& gloo, Tensors& in, Tensors& out) -> Works {
              at::Tensor to = as_bytes(out[0]), from = as_bytes(in[0]);
              std::vector<int64_t> to_splits = to_sizes, from_splits = from_sizes;
              return {gloo.alltoall_base(to, from, to_splits, from_splits, options)};
            }};
  call.in_splits = input_splits;
  call.out_splits = output_splits;
  call.part_bytes = joined(from_sizes, to_sizes);
  return submit(std::move(call), native::all_to_all_splits(to_sizes, from_sizes));
}

WorkPtr DistributedBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& requested) {
  const Kind& kind = kinds::all_to_all;
  for (const Tensors* list : {&outputs, &inputs}) {
    TORCH_CHECK_VALUE(list->size() == static_cast<size_t>(getSize()), kind.name, " takes a tensor for each of the ",
                      getSize(), " ranks, got ", list->size());
  }
  check_same_dtype(kind.name, inputs, outputs);
  std::vector<int64_t> to_sizes, from_sizes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    to_sizes.push_back(static_cast<int64_t>(outputs[i].nbytes()));
    from_sizes.push_back(static_cast<int64_t>(inputs[i].nbytes()));
  }
  // Gloo exchanges parts of one tensor. The tensor that it fills is split after the exchange.
  auto received = std::make_shared<at::Tensor>();
  const auto post = [=, options = with_timeout(requested)](c10d::Backend& gloo, Tensors& in, Tensors& out) -> Works {
    at::Tensor from = at::cat(bytes_of(in));
    at::Tensor to = at::empty({std::accumulate(to_sizes.begin(), to_sizes.end(), int64_t{0})}, from.options());
    std::vector<int64_t> to_splits = to_sizes, from_splits = from_sizes;
    *received = to;
    return {gloo.alltoall_base(to, from, to_splits, from_splits, options)};
  };
  const auto adjust = [to_sizes, received](Tensors& out) {
    int64_t begin = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      as_bytes(out[i]).copy_(received->narrow(0, begin, to_sizes[i]));
      begin += to_sizes[i];
    }
    *received = at::Tensor();
  };
  Call call{kind, inputs, outputs, false, requested.asyncOp, outputs, post, adjust};
  call.part_bytes = joined(from_sizes, to_sizes);
  return submit(std::move(call), native::all_to_all());
}

WorkPtr DistributedBackend::send(Tensors& tensors, int rank, int tag) {
  const Kind& kind = kinds::send;
  check_one(kind.name, "the tensor", tensors);
  check_rank(kind.name, "the destination", rank, getSize());
  TORCH_CHECK_VALUE(rank != getRank(), kind.name, ": the destination is rank ", rank, " itself: use copy_()");
  check_tensors(kind.name, tensors);
  const auto post = [rank, tag = gloo_tag(kind.name, tag, tensors[0].nbytes())](c10d::Backend& gloo, Tensors& in,
                                                                                Tensors&) -> Works {
    Tensors bytes = bytes_of(in);
    return {gloo.send(bytes, rank, tag)};
  };
  Call call{kind, tensors, {}, false, true, tensors, post};
  call.channel = 2 + 2 * rank;
  call.peer = rank;
  return submit(std::move(call), native::send());
}

WorkPtr DistributedBackend::receive(const Kind& kind, Tensors& tensors, int rank, int tag) {
  check_one(kind.name, "the tensor", tensors);
  check_tensors(kind.name, tensors);
  const auto post = [rank, tag = gloo_tag(kind.name, tag, tensors[0].nbytes())](c10d::Backend& gloo, Tensors&,
                                                                                Tensors& out) -> Works {
    Tensors bytes = bytes_of(out);
    return {rank < 0 ? gloo.recvAnysource(bytes, tag) : gloo.recv(bytes, rank, tag)};
  };
  Call call{kind, {}, tensors, false, true, tensors, post};
  call.channel = 3 + 2 * rank;  // 1 from any rank
  call.peer = rank;
  return submit(std::move(call), rank < 0 ? NativePost() : native::receive());
}

WorkPtr DistributedBackend::recv(Tensors& tensors, int rank, int tag) {
  check_rank(kinds::recv.name, "the source", rank, getSize());
  TORCH_CHECK_VALUE(rank != getRank(), "recv: the source is rank ", rank, " itself: use copy_()");
  return receive(kinds::recv, tensors, rank, tag);
}

WorkPtr DistributedBackend::recvAnysource(Tensors& tensors, int tag) {
  if (!tensors.empty() && uses_native(tensors.front())) {
    raise(
        ErrorKind::NotSupported, OB_UNIMPLEMENTED,
        "recv from any rank is not supported by the driver's collectives, which the sender uses: pass the source rank");
  }
  return receive(kinds::recv_any_source, tensors, -1, tag);
}

WorkPtr DistributedBackend::barrier(const c10d::BarrierOptions& requested) {
  c10d::BarrierOptions options = with_timeout(requested);
  options.device_ids.clear();
  options.device.reset();
  return submit({kinds::barrier,
                 {},
                 {},
                 true,
                 requested.asyncOp,
                 {},
                 [options](c10d::Backend& gloo, Tensors&, Tensors&) -> Works { return {gloo.barrier(options)}; }});
}

}  // namespace outboard
