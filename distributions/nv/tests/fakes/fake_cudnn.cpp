// SPDX-License-Identifier: BSD-3-Clause
// A libcudnn that convolves on the host, in the memory of fake_cuda.cpp. Like the real library it
// refuses descriptors that are not finalized or lack an attribute, shapes that do not match,
// strides that are not dense, addresses that are less aligned than described, and a missing
// workspace or stream. Its first configuration does not repeat its results, its second can't be
// finalized, its third rounds float32 to TF32. fakeCudnnEngine() returns the last one that ran,
// fakeCudnnSearches() how often configurations were requested. A convolution's plan has a text,
// from which another process makes it again. The engine named by OB_FAKE_CUDNN_COMPILES, which is
// none by default, compiles a kernel for each plan of a configuration, and ends when
// fakeCudnnCompile() has allowed as many. Convolutions of 7 channels (of the image) in groups
// have no engine. Graphs of other operations are attention's: fake_cudnn_graphs.h. Recurrent nets
// are in fake_cudnn_recurrent.h, unless it is built without.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "fake_cudnn_graphs.h"
#include "fake_cudnn_parts.h"
#ifndef OB_FAKE_WITHOUT_RECURRENT
#include "fake_cudnn_recurrent.h"
#endif

namespace {

constexpr int kBadParameter = 2000, kNotSupported = 3000, kNotInitialized = 1001;
constexpr int64_t kConfigs = 4, kRounding = 2;
constexpr int kElementBytes[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4,  4, 4, 4,
                                 8, 4, 4, 4, 4, 4, 4, 4, 4, 1, 4, 16, 4, 4, 4};  // by the type of an attribute

// A tensor of a graph, in three dimensions.
struct Tensor {
  int type = 0;
  int64_t id = 0, alignment = 0;
  std::vector<int64_t> sizes, strides;
  void* data = nullptr;

  int64_t at(int64_t batch, int64_t channel, const int64_t (&place)[3]) const {
    int64_t offset = batch * strides[0] + channel * strides[1];
    for (int i = 0; i < 3; ++i) offset += place[i] * strides[static_cast<size_t>(i) + 2];
    return offset;
  }
};

Tensor tensor_of(const Descriptor& given) {
  Tensor tensor;
  tensor.type = given.one<int>(901);
  tensor.id = given.one<int64_t>(906);
  tensor.alignment = given.one<int64_t>(900);
  tensor.sizes = given.all<int64_t>(902);
  tensor.strides = given.all<int64_t>(903);
  if (tensor.sizes.size() == 4) {
    tensor.sizes.insert(tensor.sizes.begin() + 2, 1);
    tensor.strides.insert(tensor.strides.begin() + 2, 0);
  }
  return tensor;
}

struct Convolution {
  int kind = 0;
  Tensor image, filter, response;
  int64_t stride[3] = {1, 1, 1}, padding[3] = {0, 0, 0}, dilation[3] = {1, 1, 1};

  int64_t groups() const { return image.sizes[1] / filter.sizes[1]; }

  bool fits() const {
    if (image.sizes[0] != response.sizes[0] || filter.sizes[0] != response.sizes[1] ||
        image.sizes[1] % filter.sizes[1] != 0 || filter.sizes[0] % groups() != 0) {
      return false;
    }
    for (size_t i = 0; i < 3; ++i) {
      const int64_t reach = dilation[i] * (filter.sizes[i + 2] - 1) + 1;
      if ((image.sizes[i + 2] + 2 * padding[i] - reach) / stride[i] + 1 != response.sizes[i + 2]) return false;
    }
    return true;
  }

  // Call `visit(image, filter, response)` with the places of all products.
  template <class Visit>
  void for_each(Visit&& visit) const {
    const std::vector<int64_t>&f = filter.sizes, &r = response.sizes;
    const int64_t per_group = f[0] / groups();
    for (int64_t n = 0; n < r[0]; ++n) {
      for (int64_t k = 0; k < f[0]; ++k) {
        for (int64_t c = 0; c < f[1]; ++c) {
          for (int64_t q = 0; q < r[2] * r[3] * r[4]; ++q) {
            for (int64_t w = 0; w < f[2] * f[3] * f[4]; ++w) {
              const int64_t to[3] = {q / (r[3] * r[4]), q / r[4] % r[3], q % r[4]};
              const int64_t of[3] = {w / (f[3] * f[4]), w / f[4] % f[3], w % f[4]};
              int64_t from[3];
              bool is_inside = true;
              for (size_t i = 0; i < 3; ++i) {
                from[i] = to[i] * stride[i] - padding[i] + of[i] * dilation[i];
                is_inside = is_inside && from[i] >= 0 && from[i] < image.sizes[i + 2];
              }
              if (is_inside) {
                visit(image.at(n, k / per_group * f[1] + c, from), filter.at(k, c, of), response.at(n, k, to));
              }
            }
          }
        }
      }
    }
  }

  void run(bool rounds) const {
    const auto factor = [&](const Tensor& tensor, int64_t index) {
      const void* data = tensor.data;
      const double value = read(tensor.type, data, index);
      return rounds && tensor.type == 0 ? to_tf32(value) : value;
    };
    const Tensor& out = kind == 10 ? response : kind == 11 ? filter : image;
    int64_t count = 1;
    for (const int64_t size : out.sizes) count *= size;
    std::vector<double> sums(static_cast<size_t>(count));  // dense: an offset is below the count
    for_each([&](int64_t i, int64_t f, int64_t r) {
      const double x = kind == 12 ? 0 : factor(image, i);
      const double w = kind == 11 ? 0 : factor(filter, f);
      const double y = kind == 10 ? 0 : factor(response, r);
      if (kind == 10) sums[static_cast<size_t>(r)] += x * w;
      if (kind == 11) sums[static_cast<size_t>(f)] += x * y;
      if (kind == 12) sums[static_cast<size_t>(i)] += w * y;
    });
    for (int64_t i = 0; i < count; ++i) write(out.type, out.data, i, sums[static_cast<size_t>(i)]);
  }
};

// ---- The text of a plan: an engine and a convolution as numbers ----

constexpr size_t kTextNumbers = 2 + 3 * 13 + 9;

std::vector<int64_t> numbers_of(int64_t engine, const Convolution& given) {
  std::vector<int64_t> numbers = {engine, given.kind};
  for (const Tensor* tensor : {&given.image, &given.filter, &given.response}) {
    numbers.insert(numbers.end(), {tensor->type, tensor->id, tensor->alignment});
    numbers.insert(numbers.end(), tensor->sizes.begin(), tensor->sizes.end());
    numbers.insert(numbers.end(), tensor->strides.begin(), tensor->strides.end());
  }
  for (const auto* three : {&given.stride, &given.padding, &given.dilation}) {
    numbers.insert(numbers.end(), *three, *three + 3);
  }
  return numbers;
}

Convolution convolution_of(const std::vector<int64_t>& numbers) {
  Convolution result;
  result.kind = static_cast<int>(numbers[1]);
  auto at = numbers.begin() + 2;
  for (Tensor* tensor : {&result.image, &result.filter, &result.response}) {
    tensor->type = static_cast<int>(at[0]);
    tensor->id = at[1];
    tensor->alignment = at[2];
    tensor->sizes.assign(at + 3, at + 8);
    tensor->strides.assign(at + 8, at + 13);
    at += 13;
  }
  for (auto* three : {&result.stride, &result.padding, &result.dilation}) {
    std::copy(at, at + 3, *three);
    at += 3;
  }
  return result;
}

bool is_dense(const Tensor& tensor) {
  int64_t count = 1, last = 0;
  for (size_t i = 0; i < 5; ++i) {
    if (tensor.sizes[i] < 1 || tensor.strides[i] < 0) return false;
    count *= tensor.sizes[i];
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  return last == count - 1;
}

// Read an operation. Return false if it lacks something.
bool read_operation(const Descriptor& operation, Convolution* out) {
  const int first = operation.kind == 10 ? 700 : operation.kind == 12 ? 706 : 712;
  Descriptor* parts[4];
  for (int i = 0; i < 4; ++i) {
    parts[i] = operation.one<Descriptor*>(first + 2 + i);
    if (parts[i] == nullptr || !parts[i]->is_final || parts[i]->kind != (i == 0 ? 1 : 17)) return false;
  }
  out->kind = operation.kind;
  out->filter = tensor_of(*parts[1]);
  out->image = tensor_of(*parts[2]);
  out->response = tensor_of(*parts[3]);
  const bool is_double = out->image.type == 1;
  const double alpha = is_double ? operation.one<double>(first) : operation.one<float>(first);
  const double beta = is_double ? operation.one<double>(first + 1) : operation.one<float>(first + 1);
  if (alpha != 1 || beta != 0) return false;
  const Descriptor& window = *parts[0];
  const auto dims = static_cast<size_t>(window.one<int64_t>(106));
  if (window.one<int>(101) != 1 || window.one<int>(100) != (is_double ? 1 : 0) ||
      window.all<int64_t>(104) != window.all<int64_t>(105)) {
    return false;
  }
  for (size_t i = 0; i < dims; ++i) {
    out->stride[3 - dims + i] = window.all<int64_t>(103)[i];
    out->dilation[3 - dims + i] = window.all<int64_t>(102)[i];
    out->padding[3 - dims + i] = window.all<int64_t>(105)[i];
  }
  for (const Tensor* tensor : {&out->image, &out->filter, &out->response}) {
    if (tensor->type != out->image.type || !is_dense(*tensor)) return false;
  }
  return out->fits();
}

std::atomic<int64_t> last_engine{-1}, searches{0};
std::mutex compiler_mutex;
std::condition_variable allowed_more;
int64_t allowed = 0;

bool compiles(int64_t engine) {
  const char* named = std::getenv("OB_FAKE_CUDNN_COMPILES");
  return named != nullptr && engine == std::atoll(named);
}

void compile() {
  std::unique_lock lock(compiler_mutex);
  allowed_more.wait(lock, [] { return allowed > 0; });
  --allowed;
}

const std::map<int, std::vector<int>> kNeeded = {
    {1, {100, 101, 102, 103, 104, 105, 106}}, {4, {200, 201}}, {5, {400}}, {15, {800, 801}}, {16, {1000, 1001, 1003}},
    {17, {900, 901, 902, 903, 906}}};

Convolution convolution_of(const Descriptor& plan) {
  if (const auto text = plan.all<int64_t>(405); !text.empty()) return convolution_of(text);
  const auto* config = plan.one<Descriptor*>(401);
  const auto* graph = config->one<Descriptor*>(-1);
  Convolution result;
  read_operation(*graph->one<Descriptor*>(801), &result);
  return result;
}

bool needs_workspace(const Convolution& convolution) {
  return convolution.kind == 11;
}

bool is_convolution(const Descriptor& graph) {
  const int kind = graph.one<Descriptor*>(801)->kind;
  return kind >= 10 && kind <= 12;
}

const Descriptor& graph_of(const Descriptor& plan) {
  return *plan.one<Descriptor*>(401)->one<Descriptor*>(-1);
}

bool is_convolution_plan(const Descriptor& plan) {
  return !plan.all<int64_t>(405).empty() || is_convolution(graph_of(plan));
}

bool plan_needs_workspace(const Descriptor& plan) {
  if (is_convolution_plan(plan)) return needs_workspace(convolution_of(plan));
  std::vector<graphs::Operation> operations;
  graphs::read_all(graph_of(plan), &operations);
  return graphs::needs_workspace(operations);
}

int run_graph(const Descriptor& graph, const Descriptor& pack) {
  const auto ids = pack.all<int64_t>(1000);
  const auto pointers = pack.all<void*>(1001);
  std::map<int64_t, void*> places;
  for (size_t i = 0; i < ids.size(); ++i) places[ids[i]] = pointers[i];
  std::vector<graphs::Operation> operations;
  graphs::read_all(graph, &operations);
  graphs::Run run(places);
  for (const graphs::Operation& operation : operations) {
    if (!run.run(operation)) return kBadParameter;
  }
  return 0;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() {
  const char* version = std::getenv("OB_FAKE_CUDNN_VERSION");
  return version == nullptr ? 91900 : std::strtoull(version, nullptr, 10);
}
const char* cudnnGetErrorString(int status) {
  return status == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char* text, size_t size) {
  std::snprintf(text, size, "the fake's last error");
}
int cudnnCreate(Handle** out) {
  *out = new Handle();
  return 0;
}
int cudnnDestroy(Handle* handle) {
  delete handle;
  return 0;
}
int cudnnSetStream(Handle* handle, void* stream) {
  handle->stream = stream;
  return stream == nullptr ? kBadParameter : 0;
}

int cudnnBackendCreateDescriptor(int kind, Descriptor** out) {
  *out = new Descriptor();
  (*out)->kind = kind;
  return 0;
}
int cudnnBackendDestroyDescriptor(Descriptor* descriptor) {
  delete descriptor;
  return 0;
}
int cudnnBackendSetAttribute(Descriptor* descriptor, int attribute, int type, int64_t count, const void* values) {
  if (descriptor->is_final || count < 1 || type > 29) return kBadParameter;
  const auto* bytes = static_cast<const char*>(values);
  descriptor->attributes[attribute].assign(bytes, bytes + count * kElementBytes[type]);
  return 0;
}

int cudnnBackendFinalize(Descriptor* descriptor) {
  if (descriptor->is_final) return kBadParameter;
  if (const auto needed = kNeeded.find(descriptor->kind); needed != kNeeded.end()) {
    for (const int attribute : needed->second) {
      if (descriptor->attributes.count(attribute) == 0) return kBadParameter;
    }
  }
  Convolution convolution;
  if (descriptor->kind >= 10 && descriptor->kind <= 12 && !read_operation(*descriptor, &convolution)) {
    return kBadParameter;
  }
  if (descriptor->kind == 15 && !is_convolution(*descriptor)) {
    std::vector<graphs::Operation> operations;
    if (!graphs::read_all(*descriptor, &operations)) return kBadParameter;
    if (!graphs::has_engine(operations)) return kNotSupported;
  } else if (descriptor->kind == 15) {
    read_operation(*descriptor->one<Descriptor*>(801), &convolution);
    if (convolution.image.sizes[1] == 7 && convolution.groups() > 1) return kNotSupported;
  }
  if (descriptor->kind == 4) ++searches;
  if (descriptor->kind == 5) {
    const std::vector<int64_t> text = descriptor->all<int64_t>(405);
    auto* const config = descriptor->one<Descriptor*>(401);
    if (config == nullptr && text.size() != kTextNumbers) return kBadParameter;
    descriptor->engine = config != nullptr ? config->engine : text[0];
    if (descriptor->engine == 1) return kNotSupported;
    if (config != nullptr && compiles(descriptor->engine)) compile();
  }
  descriptor->is_final = true;
  return 0;
}

int cudnnBackendGetAttribute(Descriptor* descriptor, int attribute, int, int64_t asked, int64_t* out_count, void* out) {
  if (attribute == 202) {  // configurations
    *out_count = descriptor->one<int>(200) == 3 ? kConfigs : 0;
    for (int64_t i = 0; i < *out_count && i < asked; ++i) {
      Descriptor* config = static_cast<Descriptor**>(out)[i];
      Descriptor* graph = descriptor->one<Descriptor*>(201);
      config->engine = i;
      config->is_final = true;
      config->attributes[-1].assign(reinterpret_cast<char*>(&graph), reinterpret_cast<char*>(&graph + 1));
    }
  } else if (attribute == 300) {  // an engine
    *out_count = 1;
    (*static_cast<Descriptor**>(out))->engine = descriptor->engine;
  } else if (attribute == 1303) {  // notes
    const std::vector<int> notes = descriptor->engine == 0           ? std::vector{4}
                                   : descriptor->engine == kRounding ? std::vector{0, 1}
                                                                     : std::vector<int>{};
    *out_count = static_cast<int64_t>(notes.size());
    for (size_t i = 0; i < notes.size() && static_cast<int64_t>(i) < asked; ++i) static_cast<int*>(out)[i] = notes[i];
  } else if (attribute == 1305) {  // of behavior
    *out_count = compiles(descriptor->engine) ? 1 : 0;
    if (*out_count == 1 && asked > 0) *static_cast<int*>(out) = 0;
  } else if (attribute == 405) {  // a plan's text
    if (!is_convolution_plan(*descriptor)) return kNotSupported;
    const std::vector<int64_t> numbers = numbers_of(descriptor->engine, convolution_of(*descriptor));
    *out_count = static_cast<int64_t>(numbers.size() * sizeof(int64_t));
    if (out != nullptr && asked >= *out_count) std::memcpy(out, numbers.data(), static_cast<size_t>(*out_count));
  } else if (attribute == 402) {  // workspace
    *out_count = 1;
    *static_cast<int64_t*>(out) = plan_needs_workspace(*descriptor) ? workspace_bytes() : 0;
  } else {
    return kBadParameter;
  }
  return 0;
}

int64_t fakeCudnnEngine() {
  return last_engine;
}
void fakeCudnnCompile(int64_t count) {
  const std::lock_guard lock(compiler_mutex);
  allowed += count;
  allowed_more.notify_all();
}
int64_t fakeCudnnSearches() {
  return searches;
}

int cudnnBackendExecute(Handle* handle, Descriptor* plan, Descriptor* pack) {
  if (handle->stream == nullptr || !plan->is_final || !pack->is_final) return kNotInitialized;
  last_engine = plan->engine;
  if (!is_convolution_plan(*plan)) {
    auto* scratch = pack->one<void*>(1003);
    if (plan_needs_workspace(*plan)) {
      if (scratch == nullptr) return kBadParameter;
      std::memset(scratch, 0xab, static_cast<size_t>(workspace_bytes()));
    }
    return run_graph(graph_of(*plan), *pack);
  }
  Convolution convolution = convolution_of(*plan);
  const auto ids = pack->all<int64_t>(1000);
  const auto pointers = pack->all<void*>(1001);
  auto* workspace = pack->one<void*>(1003);
  for (Tensor* tensor : {&convolution.image, &convolution.filter, &convolution.response}) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == tensor->id) tensor->data = pointers[i];
    }
    const auto address = reinterpret_cast<int64_t>(tensor->data);
    if (address == 0 || address % tensor->alignment != 0) return kBadParameter;
  }
  if (needs_workspace(convolution)) {
    if (workspace == nullptr) return kBadParameter;
    std::memset(workspace, 0xab, static_cast<size_t>(workspace_bytes()));
  }
  convolution.run(last_engine == kRounding);
  return 0;
}

}  // extern "C"
