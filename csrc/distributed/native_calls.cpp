// SPDX-License-Identifier: BSD-3-Clause
// The calls that each collective queues with the driver. Tensors are contiguous and on the device.
// Collectives that only move elements move bytes.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "core/collectives.h"
#include "distributed/native.h"
#include "distributed/reduction.h"

namespace outboard::native {

namespace {

// Return the part that reduces, over tensors in a form that drivers reduce.
ob_collective reducing(int32_t kind, const at::Tensor& src, const at::Tensor& dst, int32_t reduce, double scale) {
  const at::Tensor& counted = kind == OB_REDUCE_SCATTER ? dst : src;
  ob_collective part{};
  part.kind = kind;
  part.reduce = reduce;
  part.scale = scale;
  const c10::ScalarType dtype = counted.scalar_type();
  const int64_t parts = c10::isComplexType(dtype) ? 2 : 1;
  part.dtype = static_cast<ob_dtype>(dtype == at::kBool ? at::kByte : c10::toRealValueType(dtype));
  part.src = reinterpret_cast<uint64_t>(src.const_data_ptr());
  part.dst = dst.defined() ? reinterpret_cast<uint64_t>(dst.const_data_ptr()) : 0;
  part.count = static_cast<uint64_t>(counted.numel() * parts);
  return part;
}

at::Tensor flat_of(const at::Tensor& like, int64_t parts) {
  return at::empty({parts * like.numel()}, like.options());
}

bool has_groups() {
  return collectives()->group_begin != nullptr;
}

// Exchange a part with each rank: in[r] goes to rank r, and out[r] comes from rank r. Undefined
// tensors are skipped.
bool exchange(NativeCall& call, const Tensors& in, const Tensors& out) {
  if (!has_groups()) {
    return false;
  }
  const auto self = static_cast<size_t>(call.rank());
  if (in[self].defined() && out[self].defined() && in[self].numel() != 0) {
    as_bytes(out[self]).copy_(as_bytes(in[self]), /*non_blocking=*/true);
  }
  call.begin();
  for (size_t rank = 0; rank < in.size(); ++rank) {
    if (rank == self) {
      continue;
    }
    if (in[rank].defined() && in[rank].numel() != 0) {
      call.add(OB_SEND, in[rank], {}, static_cast<int>(rank));
    }
    if (out[rank].defined() && out[rank].numel() != 0) {
      call.add(OB_RECV, {}, out[rank], static_cast<int>(rank));
    }
  }
  call.end();
  return true;
}

Tensors parts_of(const at::Tensor& tensor, const std::vector<int64_t>& bytes) {
  const at::Tensor all = as_bytes(tensor);
  Tensors parts;
  int64_t begin = 0;
  for (const int64_t size : bytes) {
    parts.push_back(all.narrow(0, begin, size));
    begin += size;
  }
  return parts;
}

}  // namespace

NativePost broadcast(int root) {
  return [root](NativeCall& call, Tensors& in, Tensors&) { return call.add(OB_BROADCAST, in[0], in[0], root); };
}

NativePost all_reduce(int32_t op, double scale) {
  return [op, scale](NativeCall& call, Tensors& in, Tensors&) {
    bool is_done = op >= 0;
    for (size_t i = 0; i < in.size() && is_done; ++i) {
      is_done = call.add(reducing(OB_ALL_REDUCE, in[i], in[i], op, scale));
    }
    return is_done;
  };
}

NativePost reduce(int32_t op, double scale, int root) {
  return [op, scale, root](NativeCall& call, Tensors& in, Tensors&) {
    if (op < 0) {
      return false;
    }
    ob_collective part = reducing(OB_REDUCE, in[0], call.rank() == root ? in[0] : at::Tensor(), op, scale);
    part.root = root;
    return call.add(part);
  };
}

NativePost all_gather() {
  return [](NativeCall& call, Tensors& in, Tensors& out) {
    bool is_done = true;
    for (size_t i = 0; i < in.size() && is_done; ++i) {
      is_done = call.add(OB_ALL_GATHER, in[i], out[i]);
    }
    return is_done;
  };
}

NativePost all_gather_lists() {
  return [](NativeCall& call, Tensors& in, Tensors& out) {
    for (size_t i = 0; i < in.size(); ++i) {
      const at::Tensor flat = flat_of(in[i], call.size());
      if (!call.add(OB_ALL_GATHER, in[i], flat)) {
        return false;
      }
      for (int rank = 0; rank < call.size(); ++rank) {
        const at::Tensor& to = out[static_cast<size_t>(rank) * in.size() + i];
        to.copy_(flat.narrow(0, rank * in[i].numel(), in[i].numel()).view(to.sizes()), /*non_blocking=*/true);
      }
    }
    return true;
  };
}

NativePost reduce_scatter(int32_t op, double scale) {
  return [op, scale](NativeCall& call, Tensors& in, Tensors& out) {
    bool is_done = op >= 0;
    for (size_t i = 0; i < in.size() && is_done; ++i) {
      is_done = call.add(reducing(OB_REDUCE_SCATTER, in[i], out[i], op, scale));
    }
    return is_done;
  };
}

NativePost reduce_scatter_list(int32_t op, double scale) {
  return [op, scale](NativeCall& call, Tensors& in, Tensors& out) {
    if (op < 0) {
      return false;
    }
    const at::Tensor flat = flat_of(out[0], call.size());
    for (size_t rank = 0; rank < in.size(); ++rank) {
      flat.narrow(0, static_cast<int64_t>(rank) * out[0].numel(), out[0].numel())
          .copy_(in[rank].view({-1}), /*non_blocking=*/true);
    }
    return call.add(reducing(OB_REDUCE_SCATTER, flat, out[0], op, scale));
  };
}

NativePost gather(int root) {
  return [root](NativeCall& call, Tensors& in, Tensors& out) {
    const auto size = static_cast<size_t>(call.size());
    Tensors from(size), to(size);
    from[static_cast<size_t>(root)] = in[0];
    if (call.rank() == root) {
      to = out;
    }
    return exchange(call, from, to);
  };
}

NativePost scatter(int root) {
  return [root](NativeCall& call, Tensors& in, Tensors& out) {
    const auto size = static_cast<size_t>(call.size());
    Tensors from(size), to(size);
    to[static_cast<size_t>(root)] = out[0];
    if (call.rank() == root) {
      from = in;
    }
    return exchange(call, from, to);
  };
}

NativePost all_to_all() {
  return [](NativeCall& call, Tensors& in, Tensors& out) { return exchange(call, in, out); };
}

NativePost all_to_all_splits(std::vector<int64_t> to_bytes, std::vector<int64_t> from_bytes) {
  return [to = std::move(to_bytes), from = std::move(from_bytes)](NativeCall& call, Tensors& in, Tensors& out) {
    return exchange(call, parts_of(in[0], from), parts_of(out[0], to));
  };
}

NativePost send() {
  return [](NativeCall& call, Tensors& in, Tensors&) { return call.add(OB_SEND, in[0], {}, 1); };
}

NativePost receive() {
  return [](NativeCall& call, Tensors&, Tensors& out) { return call.add(OB_RECV, {}, out[0], 0); };
}

}  // namespace outboard::native
