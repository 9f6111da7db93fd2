// SPDX-License-Identifier: BSD-3-Clause
/* Operator kernels of a driver in C: add, relu and mm in float32, on memory that the host can touch.

   Each is registered once and serves all forms of its operator: `x + y`, `x.add_(y)` and `torch.add(x, y, out=z)` all
   reach `add`. A kernel sees any strides, broadcasts, takes numbers that stand on the CPU, and declines, before it has
   queued anything, what it has no code for. Here the work is done at once, as the null driver's streams do; on a device
   the loops are a launch on `call->stream`. docs/writing-a-driver.md goes through it. */

#include <stddef.h>
#include <torch_outboard/driver.h>

enum { MAX_DIMS = 16 };

/* The core may be newer than this header and have longer structs: steps come from the call, not from sizeof. */
static const ob_value* argument(const ob_kernel_call* call, size_t index) {
  return (const ob_value*)((const char*)call->args + index * call->arg_stride);
}

static const ob_tensor* tensor(const ob_kernel_call* call, size_t index) {
  const ob_value* value = argument(call, index);
  return value->kind == OB_VALUE_TENSOR ? value->tensors : NULL;
}

/* ---- Element-wise ------------------------------------------------------------------------------------------------ */

/* One side of an element-wise operator, seen in the shape of the output. */
typedef struct operand {
  const float* data; /* null: a number */
  float number;
  int64_t strides[MAX_DIMS];
} operand;

/* A number that stands on the CPU: `data` is a host pointer, to be read now, whatever the stream does later. */
static int read_number(const ob_tensor* t, float* out_number) {
  const void* at = (const void*)(uintptr_t)t->data;
  if (t->dtype == OB_FLOAT64) {
    *out_number = (float)*(const double*)at;
  } else if (t->dtype == OB_INT64) {
    *out_number = (float)*(const int64_t*)at;
  } else if (t->dtype == OB_FLOAT32) {
    *out_number = *(const float*)at;
  } else {
    return 0;
  }
  return 1;
}

/* False if there is no code for the operand. A dimension that is broadcast gets a stride of 0. */
static int make_operand(const ob_tensor* t, const ob_tensor* out, operand* made) {
  *made = (operand){0};
  if (t == NULL) return 0;
  if (t->device == OB_HOST) return read_number(t, &made->number);
  if (t->dtype != OB_FLOAT32 || t->ndim > out->ndim) return 0;
  made->data = (const float*)(uintptr_t)t->data;
  for (int32_t i = 0; i < t->ndim; ++i) {
    if (t->sizes[i] != 1) made->strides[out->ndim - t->ndim + i] = t->strides[i];
  }
  return 1;
}

static int is_output(const ob_tensor* out) {
  return out != NULL && out->dtype == OB_FLOAT32 && out->ndim <= MAX_DIMS;
}

/* Sets out = a + alpha * b, or max(a, 0) where there is no b. */
static void run_elementwise(const ob_tensor* out, const operand* a, const operand* b, float alpha) {
  int64_t count = 1;
  for (int32_t i = 0; i < out->ndim; ++i) count *= out->sizes[i];
  for (int64_t n = 0; n < count; ++n) {
    ptrdiff_t at_out = 0, at_a = 0, at_b = 0;
    int64_t rest = n;
    for (int32_t i = out->ndim - 1; i >= 0; --i) {
      const int64_t index = rest % out->sizes[i];
      rest /= out->sizes[i];
      at_out += index * out->strides[i];
      at_a += index * a->strides[i];
      if (b != NULL) at_b += index * b->strides[i];
    }
    const float x = a->data != NULL ? a->data[at_a] : a->number;
    const float y = b == NULL ? 0 : b->data != NULL ? b->data[at_b] : b->number;
    ((float*)(uintptr_t)out->data)[at_out] = b == NULL ? (x < 0 ? 0 : x) : x + alpha * y;
  }
}

/* aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out): `out` is the fourth argument, and for
   x.add_(y) it is x itself. */
static ob_status add(void* user, const ob_kernel_call* call) {
  const ob_tensor* out = tensor(call, 3);
  const ob_value* alpha = argument(call, 2);
  operand a, b;
  if (!is_output(out) || !make_operand(tensor(call, 0), out, &a) || !make_operand(tensor(call, 1), out, &b)) {
    return OB_UNIMPLEMENTED;
  }
  if (alpha->kind != OB_VALUE_INT && alpha->kind != OB_VALUE_DOUBLE) return OB_UNIMPLEMENTED;
  run_elementwise(out, &a, &b, alpha->kind == OB_VALUE_INT ? (float)alpha->ints[0] : (float)alpha->doubles[0]);
  return OB_OK;
}

/* aten::relu(Tensor self): the core has allocated the output. */
static ob_status relu(void* user, const ob_kernel_call* call) {
  const ob_tensor* out = call->outputs;
  operand a;
  if (!is_output(out) || !make_operand(tensor(call, 0), out, &a)) return OB_UNIMPLEMENTED;
  run_elementwise(out, &a, NULL, 0);
  return OB_OK;
}

/* ---- Matrix products --------------------------------------------------------------------------------------------- */

/* aten::mm(Tensor self, Tensor mat2): the core has checked the shapes. */
static ob_status mm(void* user, const ob_kernel_call* call) {
  const ob_tensor *a = tensor(call, 0), *b = tensor(call, 1), *out = call->outputs;
  if (a == NULL || b == NULL || a->dtype != OB_FLOAT32 || b->dtype != OB_FLOAT32) return OB_UNIMPLEMENTED;
  const float *left = (const float*)(uintptr_t)a->data, *right = (const float*)(uintptr_t)b->data;
  float* result = (float*)(uintptr_t)out->data;
  for (int64_t i = 0; i < out->sizes[0]; ++i) {
    for (int64_t j = 0; j < out->sizes[1]; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < a->sizes[1]; ++k) {
        sum += left[i * a->strides[0] + k * a->strides[1]] * right[k * b->strides[0] + j * b->strides[1]];
      }
      result[i * out->strides[0] + j * out->strides[1]] = sum;
    }
  }
  return OB_OK;
}

/* ---- The entry of the table -------------------------------------------------------------------------------------- */

OB_EXPORT ob_status kernel_register(void* self, const ob_registrar* registrar) {
  static const struct {
    const char* op;
    ob_operator_fn fn;
  } kernels[] = {{"aten::add.out", add}, {"aten::relu", relu}, {"aten::mm", mm}};
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; ++i) {
    const ob_status status = registrar->add(registrar->context, kernels[i].op, kernels[i].fn, NULL);
    if (status != OB_OK) return status; /* attach raises, with the operator's name and the overloads that there are */
  }
  return OB_OK;
}
