// SPDX-License-Identifier: BSD-3-Clause
// A libcublasLt that multiplies on the host, in the memory of fake_cuda.cpp. Like the real library
// it refuses sizes that do not match, addresses that are less aligned than stated when the
// algorithm was chosen, a workspace that is too small, and a missing stream. Products of 7 columns
// have no algorithm.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bfloat16.h"

namespace {

constexpr int kInvalidValue = 7, kNotSupported = 15;
constexpr int kComputeTf32 = 77;
constexpr size_t kWorkspace = 1000;
constexpr uint64_t kChosen = 0x616c676f;

struct Handle {
  uint64_t mark = 0x68616e64;
};

struct Description {
  int compute, scale;
  int transposes[2] = {};
  int epilogue = 1;
  const void* bias = nullptr;
};

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batch = 1;
  int64_t step = 0;
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

struct Algorithm {
  uint64_t mark, workspace;
  uint32_t alignments[4];
  uint64_t rest[4];
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

double read(int type, const void* at, int64_t index) {
  switch (type) {
    case 0:
      return static_cast<const float*>(at)[index];
    case 1:
      return static_cast<const double*>(at)[index];
    case 2:
      return static_cast<double>(static_cast<const _Float16*>(at)[index]);
    default:
      return from_bfloat16(static_cast<const uint16_t*>(at)[index]);
  }
}

void write(int type, void* at, int64_t index, double value) {
  switch (type) {
    case 0:
      static_cast<float*>(at)[index] = static_cast<float>(value);
      break;
    case 1:
      static_cast<double*>(at)[index] = value;
      break;
    case 2:
      static_cast<_Float16*>(at)[index] = static_cast<_Float16>(value);
      break;
    default:
      static_cast<uint16_t*>(at)[index] = to_bfloat16(static_cast<float>(value));
  }
}

bool is_layout(const Layout& layout) {
  return layout.rows > 0 && layout.columns > 0 && layout.leading >= static_cast<int64_t>(layout.rows);
}

bool fit(const Description& description, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool at = description.transposes[0] == 1, bt = description.transposes[1] == 1;
  const uint64_t inner = at ? a.rows : a.columns;
  for (const Layout* layout : {&a, &b, &c}) {
    if (layout->type != d.type || layout->batch != d.batch) return false;
  }
  return is_layout(a) && is_layout(b) && is_layout(c) && is_layout(d) && (bt ? b.columns : b.rows) == inner &&
         (at ? a.columns : a.rows) == d.rows && (bt ? b.rows : b.columns) == d.columns && c.rows == d.rows &&
         c.columns == d.columns && (description.compute == 70) == (d.type == 1) &&
         (description.scale == 1) == (d.type == 1) && (description.compute != kComputeTf32 || d.type == 0);
}

}  // namespace

extern "C" {

const char* cublasLtGetStatusName(int status) {
  return status == kNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
}
int cublasLtCreate(Handle** out) {
  *out = new Handle();
  return 0;
}
int cublasLtDestroy(Handle* handle) {
  delete handle;
  return 0;
}
int cublasLtMatmulDescCreate(Description** out, int compute, int scale) {
  *out = new Description{compute, scale};
  return 0;
}
int cublasLtMatmulDescDestroy(Description* description) {
  delete description;
  return 0;
}
int cublasLtMatmulDescSetAttribute(Description* description, int attribute, const void* value, size_t size) {
  if ((attribute == 3 || attribute == 4) && size == sizeof(int)) {
    std::memcpy(&description->transposes[attribute - 3], value, size);
  } else if (attribute == 7 && size == sizeof(int)) {
    std::memcpy(&description->epilogue, value, size);
  } else if (attribute == 8 && size == sizeof(void*)) {
    std::memcpy(&description->bias, value, size);
  } else {
    return kInvalidValue;
  }
  return 0;
}
int cublasLtMatrixLayoutCreate(Layout** out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *out = new Layout{type, rows, columns, leading};
  return 0;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t size) {
  if (attribute == 5 && size == sizeof(int32_t)) {
    std::memcpy(&layout->batch, value, size);
  } else if (attribute == 6 && size == sizeof(int64_t)) {
    std::memcpy(&layout->step, value, size);
  } else {
    return kInvalidValue;
  }
  return 0;
}
int cublasLtMatmulPreferenceCreate(Preference** out) {
  *out = new Preference();
  return 0;
}
int cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t size) {
  if (attribute == 1 && size == sizeof(uint64_t)) {
    std::memcpy(&preference->workspace, value, size);
  } else if (attribute >= 5 && attribute <= 8 && size == sizeof(uint32_t)) {
    std::memcpy(&preference->alignments[attribute - 5], value, size);
  } else {
    return kInvalidValue;
  }
  return 0;
}

int cublasLtMatmulAlgoGetHeuristic(Handle* handle, Description* description, Layout* a, Layout* b, Layout* c, Layout* d,
                                   Preference* preference, int asked, Heuristic* out, int* out_count) {
  *out_count = 0;
  if (handle->mark != Handle().mark || asked < 1 || !fit(*description, *a, *b, *c, *d)) return kInvalidValue;
  if (d->columns == 7 || d->rows == 7) return kNotSupported;
  *out = Heuristic{};
  out->algorithm.mark = kChosen;
  out->workspace = out->algorithm.workspace = d->rows > 8 && preference->workspace >= kWorkspace ? kWorkspace : 0;
  std::memcpy(out->algorithm.alignments, preference->alignments, sizeof preference->alignments);
  *out_count = 1;
  return 0;
}

int cublasLtMatmul(Handle* handle, Description* description, const void* alpha, const void* a, Layout* a_layout,
                   const void* b, Layout* b_layout, const void* beta, const void* c, Layout* c_layout, void* d,
                   Layout* d_layout, const Algorithm* algorithm, void* workspace, size_t workspace_size, void* stream) {
  if (handle->mark != Handle().mark || algorithm->mark != kChosen || stream == nullptr ||
      !fit(*description, *a_layout, *b_layout, *c_layout, *d_layout) || workspace_size < algorithm->workspace ||
      (algorithm->workspace > 0 && workspace == nullptr)) {
    return kInvalidValue;
  }
  const void* const addresses[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(addresses[i]) % algorithm->alignments[i] != 0) return kInvalidValue;
  }
  if (workspace_size > 0) std::memset(workspace, 0xab, workspace_size);
  const int type = d_layout->type;
  const double scale_product = read(type == 1 ? 1 : 0, alpha, 0), scale_c = read(type == 1 ? 1 : 0, beta, 0);
  const bool at = description->transposes[0] == 1, bt = description->transposes[1] == 1;
  const auto rows = static_cast<int64_t>(d_layout->rows), columns = static_cast<int64_t>(d_layout->columns);
  const auto inner = static_cast<int64_t>(at ? a_layout->rows : a_layout->columns);
  for (int64_t number = 0; number < d_layout->batch; ++number) {
    std::vector<double> results(static_cast<size_t>(rows * columns));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
          const int64_t left = at ? row * a_layout->leading + k : k * a_layout->leading + row;
          const int64_t right = bt ? k * b_layout->leading + column : column * b_layout->leading + k;
          const double x = read(type, a, number * a_layout->step + left),
                       y = read(type, b, number * b_layout->step + right);
          sum += description->compute == kComputeTf32 ? to_tf32(x) * to_tf32(y) : x * y;
        }
        sum *= scale_product;
        const int64_t place = column * c_layout->leading + row;
        if (scale_c != 0) sum += scale_c * read(type, c, number * c_layout->step + place);
        if (description->epilogue == 4) sum += read(type, description->bias, row);
        results[static_cast<size_t>(column * rows + row)] = sum;
      }
    }
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = 0; row < rows; ++row) {
        write(type, d, number * d_layout->step + column * d_layout->leading + row,
              results[static_cast<size_t>(column * rows + row)]);
      }
    }
  }
  return 0;
}

}  // extern "C"
