// SPDX-License-Identifier: BSD-3-Clause
#include "products.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "../driver.h"
#include "call.h"

namespace nv {

using namespace cublaslt;

namespace {

// NVIDIA's recommendation for Hopper; smaller GPUs get algorithms that need less.
constexpr uint64_t kMaxWorkspace = uint64_t{32} << 20;
constexpr size_t kMaxPlans = 8192;
constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

// A matrix, or all matrices of a batch, as cuBLASLt sees it: column-major, so a
// row-major matrix is its transpose.
struct Matrix {
  uint64_t data = 0;
  int64_t leading = 0;
  int64_t step = 0;  // from one matrix of a batch to the next, in elements
  bool is_by_rows = false;
};

enum class Order { kAny, kByRows, kByColumns };

// Return a tensor's last two dimensions as a matrix; nothing for strides that no product takes.
std::optional<Matrix> matrix_of(const ob_tensor& tensor, Order order) {
  const int32_t row = tensor.ndim - 2;
  const int64_t rows = tensor.sizes[row], columns = tensor.sizes[row + 1];
  const int64_t by_row = tensor.strides[row], by_column = tensor.strides[row + 1];
  Matrix matrix{tensor.data};
  if (order != Order::kByColumns && (columns == 1 || by_column == 1) && (rows == 1 || by_row >= columns)) {
    matrix.is_by_rows = true;
    matrix.leading = rows == 1 ? columns : by_row;
  } else if (order != Order::kByRows && (rows == 1 || by_row == 1) && (columns == 1 || by_column >= rows)) {
    matrix.leading = columns == 1 ? rows : by_column;
  } else {
    return std::nullopt;
  }
  if (row == 1 && tensor.sizes[0] > 1) matrix.step = tensor.strides[0];
  if (matrix.leading > kMaxSize || matrix.step < 0) return std::nullopt;
  return matrix;
}

struct Type {
  int data;
  int compute;
  int64_t bytes;
};

std::optional<Type> type_of(ob_dtype dtype) {
  switch (dtype) {
    case OB_FLOAT16:
      return Type{kReal16, kCompute32, 2};
    case OB_BFLOAT16:
      return Type{kBFloat16, kCompute32, 2};
    case OB_FLOAT32:
      return Type{kReal32, kCompute32, 4};
    case OB_FLOAT64:
      return Type{kReal64, kCompute64, 8};
    default:
      return std::nullopt;
  }
}

// Return the largest power of two, 256 at most, that divides the address and those of all steps.
int64_t alignment_of(const Matrix& matrix, int64_t bytes) {
  const uint64_t all = matrix.data | static_cast<uint64_t>(matrix.step * bytes) | 256;
  return static_cast<int64_t>(all & (~all + 1));
}

// out = alpha * x @ y + beta * c, column-major: the request to cuBLASLt.
struct Product {
  Type type;
  int64_t rows, columns, inner, batch;
  Matrix x, y, c, out;
  bool transposes_x, transposes_y;
  uint64_t bias;  // a number for each row to add; 0: none
  double alpha, beta;
  uint64_t max_workspace;

  ProductKey key() const {
    return {type.data,
            type.compute,
            rows,
            columns,
            inner,
            batch,
            x.leading,
            y.leading,
            c.leading,
            out.leading,
            x.step,
            y.step,
            c.step,
            out.step,
            transposes_x,
            transposes_y,
            bias != 0,
            beta == 0,
            static_cast<int64_t>(max_workspace),
            alignment_of(x, type.bytes),
            alignment_of(y, type.bytes),
            alignment_of(c, type.bytes),
            alignment_of(out, type.bytes)};
  }
};

}  // namespace

template <class Handle, int (*Library::*Destroy)(Handle)>
struct Owned {
  explicit Owned(const Library& cublaslt) : library(cublaslt) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) static_cast<void>((library.*Destroy)(handle));
  }
  const Library& library;
  Handle handle = nullptr;
};

using OwnedDescription = Owned<Description, &Library::MatmulDescDestroy>;
using OwnedLayout = Owned<Layout, &Library::MatrixLayoutDestroy>;
using OwnedPreference = Owned<Preference, &Library::MatmulPreferenceDestroy>;

namespace {

int describe(const Product& product, OwnedDescription* out) {
  const Library& library = out->library;
  int status =
      library.MatmulDescCreate(&out->handle, product.type.compute, product.type.data == kReal64 ? kReal64 : kReal32);
  const int transposed = kOperationTransposed, epilogue = kEpilogueBias;
  const auto set = [&](int attribute, const auto& value) {
    if (status == 0) status = library.MatmulDescSetAttribute(out->handle, attribute, &value, sizeof value);
  };
  if (product.transposes_x) set(kTransposeA, transposed);
  if (product.transposes_y) set(kTransposeB, transposed);
  if (product.bias != 0) {
    set(kEpilogue, epilogue);
    set(kBiasPointer, product.bias);
  }
  return status;
}

int describe(const Product& product, const Matrix& matrix, int64_t rows, int64_t columns, OwnedLayout* out) {
  const Library& library = out->library;
  int status = library.MatrixLayoutCreate(&out->handle, product.type.data, static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(columns), matrix.leading);
  const auto count = static_cast<int32_t>(product.batch);
  if (status == 0 && count > 1) {
    status = library.MatrixLayoutSetAttribute(out->handle, kBatchCount, &count, sizeof count);
    if (status == 0)
      status = library.MatrixLayoutSetAttribute(out->handle, kBatchStep, &matrix.step, sizeof matrix.step);
  }
  return status;
}

}  // namespace

struct ProductPlan {
  explicit ProductPlan(const Library& library)
      : description(library), x(library), y(library), c(library), out(library) {}

  OwnedDescription description;
  OwnedLayout x, y, c, out;
  bool has_algorithm = false;
  Algorithm algorithm{};
  size_t workspace = 0;

  int fill(Handle handle, const Product& product) {
    int status = describe(product, &description);
    const auto lay_out = [&](const Matrix& matrix, int64_t rows, int64_t columns, bool is_transposed, auto* layout) {
      if (is_transposed) std::swap(rows, columns);
      if (status == 0) status = describe(product, matrix, rows, columns, layout);
    };
    lay_out(product.x, product.rows, product.inner, product.transposes_x, &x);
    lay_out(product.y, product.inner, product.columns, product.transposes_y, &y);
    lay_out(product.c, product.rows, product.columns, false, &c);
    lay_out(product.out, product.rows, product.columns, false, &out);
    const Library& library = description.library;
    OwnedPreference preference(library);
    if (status == 0) status = library.MatmulPreferenceCreate(&preference.handle);
    const auto set = [&](int attribute, const auto& value) {
      if (status == 0)
        status = library.MatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof value);
    };
    set(kWorkspaceBytes, product.max_workspace);
    int attribute = kAlignmentA;
    for (const Matrix* matrix : {&product.x, &product.y, &product.c, &product.out}) {
      set(attribute++, static_cast<uint32_t>(alignment_of(*matrix, product.type.bytes)));
    }
    if (status != 0) return status;
    Heuristic heuristic{};
    int count = 0;
    status = library.MatmulAlgoGetHeuristic(handle, description.handle, x.handle, y.handle, c.handle, out.handle,
                                            preference.handle, 1, &heuristic, &count);
    constexpr int kNotSupported = 15;
    if (status == kNotSupported || (status == 0 && (count == 0 || heuristic.status != 0))) return 0;
    has_algorithm = status == 0;
    algorithm = heuristic.algorithm;
    workspace = heuristic.workspace;
    return status;
  }
};

size_t ProductKeyHash::operator()(const ProductKey& key) const noexcept {
  uint64_t hash = 14695981039346656037u;
  for (const int64_t word : key) hash = (hash ^ static_cast<uint64_t>(word)) * 1099511628211u;
  return hash ^ (hash >> 32);
}

ob_status Products::make(const Library& library, std::unique_ptr<Products>* out_products) {
  Handle handle = nullptr;
  if (const int status = library.Create(&handle); status != 0) {
    return fail(OB_INTERNAL, "cublasLtCreate returned %s", library.GetStatusName(status));
  }
  out_products->reset(new Products(library, handle));
  return OB_OK;
}

Products::~Products() {
  plans_.clear();
  static_cast<void>(library.Destroy(handle));
}

template <class Fill>
ob_status Products::find(const ProductKey& key, Fill&& fill, std::shared_ptr<const ProductPlan>* out_plan) {
  {
    const std::shared_lock lock(mutex_);
    if (const auto it = plans_.find(key); it != plans_.end()) {
      *out_plan = it->second;
      return OB_OK;
    }
  }
  auto plan = std::make_shared<ProductPlan>(library);
  if (const int status = fill(*plan); status != 0) {
    return support::fail(OB_INTERNAL, "cuBLASLt can't plan a product: %s", library.GetStatusName(status));
  }
  const std::lock_guard lock(mutex_);
  if (plans_.size() >= kMaxPlans) plans_.clear();  // the callers that run a plan hold it
  *out_plan = plans_.emplace(key, std::move(plan)).first->second;
  return OB_OK;
}

namespace {

ob_status decline(const char* reason) {
  return fail(OB_UNIMPLEMENTED, "cuBLASLt: %s", reason);
}

ob_status products_of(Driver& driver, Device& device, Products** out_products) {
  const std::lock_guard lock(device.own_mutex);
  if (device.products == nullptr) {
    std::string error;
    const Library* library = cublaslt::load(driver.options.cublaslt, &error);
    if (library == nullptr) return decline(error.c_str());
    if (const ob_status status = Products::make(*library, &device.products); status != OB_OK) return status;
  }
  *out_products = device.products.get();
  return OB_OK;
}

ob_status run(Driver& driver, Device& device, const ob_kernel_call& call, const Product& product) {
  Products* products = nullptr;
  if (const ob_status status = products_of(driver, device, &products); status != OB_OK) return status;
  std::shared_ptr<const ProductPlan> plan;
  const ob_status found =
      products->find(product.key(), [&](ProductPlan& made) { return made.fill(products->handle, product); }, &plan);
  if (found != OB_OK) return found;
  if (!plan->has_algorithm) return decline("no algorithm for these sizes and strides");
  // The bias's address is part of the description, so a call with a bias has its own.
  OwnedDescription own(products->library);
  int status = product.bias != 0 ? describe(product, &own) : 0;
  uint64_t workspace = 0;
  if (plan->workspace > 0) {
    if (const ob_status status = call.scratch(call.scratch_context, plan->workspace, &workspace); status != OB_OK) {
      return status;
    }
  }
  const float alpha = static_cast<float>(product.alpha), beta = static_cast<float>(product.beta);
  const bool is_double = product.type.data == kReal64;
  const auto pointer = [](uint64_t address) { return reinterpret_cast<void*>(address); };
  if (status == 0) {
    status = products->library.Matmul(
        products->handle, product.bias != 0 ? own.handle : plan->description.handle,
        is_double ? static_cast<const void*>(&product.alpha) : &alpha, pointer(product.x.data), plan->x.handle,
        pointer(product.y.data), plan->y.handle, is_double ? static_cast<const void*>(&product.beta) : &beta,
        pointer(product.c.data), plan->c.handle, pointer(product.out.data), plan->out.handle, &plan->algorithm,
        pointer(workspace), plan->workspace, to_stream(call.stream));
  }
  if (status == 0) return OB_OK;
  return fail(OB_INTERNAL, "%s: cublasLtMatmul returned %s", device.where.c_str(),
              products->library.GetStatusName(status));
}

double number_of(const ob_value& value) {
  return value.kind == OB_VALUE_DOUBLE ? value.doubles[0] : static_cast<double>(value.ints[0]);
}

// The tensor that is added to the product.
struct Addend {
  const ob_tensor* tensor = nullptr;  // null: nothing
  double alpha = 1;
  double beta = 0;
};

// Put the addend into the product. Return false if it is neither cuBLASLt's C nor its bias.
bool add(const Addend& addend, const ob_tensor& out, Product* product) {
  product->alpha = addend.alpha;
  product->c = product->out;
  if (addend.tensor == nullptr || addend.beta == 0) return true;
  const ob_tensor& tensor = *addend.tensor;
  if (tensor.dtype != out.dtype || tensor.device != out.device) return false;
  const bool is_row = tensor.ndim == 1 && tensor.sizes[0] == out.sizes[out.ndim - 1] && tensor.strides[0] == 1;
  // One number for each column of a row-major matrix: for each row of its transpose.
  if (is_row && addend.beta == 1 && product->out.is_by_rows && product->batch == 1 && product->type.data != kReal64) {
    product->bias = tensor.data;
    return true;
  }
  if (tensor.ndim != out.ndim || !std::equal(tensor.sizes, tensor.sizes + tensor.ndim, out.sizes)) return false;
  const auto matrix = matrix_of(tensor, product->out.is_by_rows ? Order::kByRows : Order::kByColumns);
  if (!matrix.has_value()) return false;
  product->c = *matrix;
  product->beta = addend.beta;
  return true;
}

ob_status multiply(void* self, const ob_kernel_call& call, const ob_tensor& left, const ob_tensor& right,
                   const ob_tensor& out, const Addend& addend) {
  const std::optional<Type> type = type_of(out.dtype);
  if (!type.has_value() || left.dtype != out.dtype || right.dtype != out.dtype) return decline("unsupported dtype");
  if (left.device != out.device || right.device != out.device) return decline("tensors must be on one device");
  const int32_t last = out.ndim - 1;
  Product product{};
  product.type = *type;
  if (out.dtype == OB_FLOAT32 && has_flags(call, OB_CALL_ROUNDS_PRODUCTS)) product.type.compute = kComputeTf32;
  product.max_workspace = kMaxWorkspace;
  product.rows = out.sizes[last - 1];
  product.columns = out.sizes[last];
  product.inner = left.sizes[last];
  product.batch = last == 2 ? out.sizes[0] : 1;
  const auto sizes = {product.rows, product.columns, product.inner, product.batch};
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size == 0 || size > kMaxSize; })) {
    return decline("unsupported sizes");
  }
  const auto x = matrix_of(left, Order::kAny), y = matrix_of(right, Order::kAny), result = matrix_of(out, Order::kAny);
  if (!x.has_value() || !y.has_value() || !result.has_value()) return decline("unsupported strides");
  product.out = *result;
  product.x = *x;
  product.y = *y;
  product.transposes_x = x->is_by_rows;
  product.transposes_y = y->is_by_rows;
  if (result->is_by_rows) {
    // The transpose of a product is the product of the transposed matrices in reverse order.
    std::swap(product.rows, product.columns);
    std::swap(product.x, product.y);
    product.transposes_x = !y->is_by_rows;
    product.transposes_y = !x->is_by_rows;
  }
  if (!add(addend, out, &product)) return decline("unsupported addend");
  return on_device(self, call.device, call.op,
                   [&](Driver& driver, Device& device) { return run(driver, device, call, product); });
}

// mm and bmm: (self, mat2, *, out)
ob_status multiply_only(void* self, const ob_kernel_call* call) {
  return multiply(self, *call, *value_at(*call, 0).tensors, *value_at(*call, 1).tensors, *value_at(*call, 2).tensors,
                  {});
}

// addmm and baddbmm: (self, left, right, *, beta, alpha, out)
ob_status multiply_and_add(void* self, const ob_kernel_call* call) {
  const Addend addend{value_at(*call, 0).tensors, number_of(value_at(*call, 4)), number_of(value_at(*call, 3))};
  return multiply(self, *call, *value_at(*call, 1).tensors, *value_at(*call, 2).tensors, *value_at(*call, 5).tensors,
                  addend);
}

}  // namespace

ob_status register_products(void* self, const ob_registrar* registrar) {
  const std::pair<const char*, ob_operator_fn> kernels[] = {{"aten::mm.out", multiply_only},
                                                            {"aten::bmm.out", multiply_only},
                                                            {"aten::addmm.out", multiply_and_add},
                                                            {"aten::baddbmm.out", multiply_and_add}};
  for (const auto& [op, function] : kernels) {
    if (const ob_status status = registrar->add(registrar->context, op, function, self); status != OB_OK) {
      return status;
    }
  }
  return OB_OK;
}

}  // namespace nv
