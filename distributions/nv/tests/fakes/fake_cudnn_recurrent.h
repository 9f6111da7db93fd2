// SPDX-License-Identifier: BSD-3-Clause
// The recurrent nets of the fake cuDNN: computed on the host, in double. It refuses descriptors
// that are not set or don't fit together, spaces of other sizes than it told, lengths that it
// doesn't need, gradients before the forward pass or twice from the same reserve, no stream. Nets
// of 13 cells are not supported, nor persistent ones of 14; weights of 15 cells have a gap.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "fake_cudnn_parts.h"

namespace recurrent {

constexpr int kBad = 2000, kRefused = 3000, kNoStream = 1001;
constexpr int kRelu = 0, kLstm = 2, kGru = 3;
constexpr uint64_t kIsForward = 0x666f7277, kHasGradients = 0x67726164;
constexpr size_t kHead = 8;  // bytes

struct Net {
  int algorithm, cell, biases, directions, type, math;
  int width, cells, states, layers;
  unsigned flags;
  bool is_set = false;

  int gates() const { return cell == kLstm ? 4 : cell == kGru ? 3 : 1; }
  int all() const { return layers * directions; }
  int inputs(int layer) const { return layer / directions == 0 ? width : states * directions; }
  size_t element() const { return type == 1 ? 8 : type == 0 ? 4 : 2; }
  size_t gap() const { return cells == 15 ? 64 : 0; }  // elements
};

struct Rows {
  int type, layout, steps, batch, width;
  std::vector<int> lengths;
  bool is_set = false;

  int at_step(int step) const {
    return layout == 0 ? batch : static_cast<int>(std::count_if(lengths.begin(), lengths.end(), [&](int length) {
      return length > step;
    }));
  }
  std::vector<int> first() const {
    std::vector<int> result{0};
    for (int step = 0; step < steps; ++step) result.push_back(result.back() + at_step(step));
    return result;
  }
};

struct States {
  int type = -1;
  std::vector<int> sizes;
};

struct Dropout {
  bool is_set = false;
};

// Where a gate's numbers are among the weights.
struct Place {
  size_t matrix, bias;
};

inline Place place_of(const Net& net, int layer, int id) {
  const int gates = net.gates();
  const auto of_layer = [&](int index) {
    const auto rows = static_cast<size_t>(gates * net.cells);
    const size_t projection = net.states == net.cells ? 0 : static_cast<size_t>(net.states * net.cells);
    return rows * static_cast<size_t>(net.inputs(index) + net.states) + projection;
  };
  Place place{0, net.gap()};
  for (int index = 0; index < net.all(); ++index) {
    place.bias += of_layer(index);
    if (index < layer) place.matrix += of_layer(index);
  }
  const int from_input = std::min(id, gates), from_states = id - from_input;
  place.matrix += static_cast<size_t>(net.cells * (from_input * net.inputs(layer) + from_states * net.states));
  place.bias += static_cast<size_t>(net.cells * (layer * 2 * gates + id));
  return place;
}

inline size_t weight_count(const Net& net) {
  const int layer = net.biases == 0 ? 0 : net.all();
  return place_of(net, layer == 0 ? 0 : layer - 1, layer == 0 ? 0 : 2 * net.gates()).bias;
}

// What is kept of each row of a layer.
struct Record {
  explicit Record(const Net& net)
      : hidden(net.gates() * net.cells),
        own(2 * hidden),
        cell(own + net.cells),
        before(cell + net.cells),
        state(before + net.cells),
        projected(state + net.states),
        size(projected + net.states) {}

  int hidden;  // gradients of the states' part of the gates; the gates, or their gradients, are at 0
  int own;     // the states' part of a GRU's third gate
  int cell, before, state, projected, size;
};

inline size_t reserve_bytes(const Net& net, const Rows& rows) {
  return kHead + sizeof(double) * static_cast<size_t>(net.all() * rows.first().back() * Record(net).size);
}

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

class Run {
 public:
  Run(const Net& given, const Rows& rows, const void* x, const void* weights, const void* hx, const void* cx,
      void* reserve)
      : net(given), record(given), first(rows.first()), lengths(rows.lengths), batch(rows.batch) {
    const bool rounds = net.type == 0 && net.math == 0;
    const auto all = [&](const void* from, size_t count, bool is_factor) {
      std::vector<double> result(from == nullptr ? 0 : count);
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = read(net.type, from, static_cast<int64_t>(i));
        if (rounds && is_factor) result[i] = to_tf32(result[i]);
      }
      return result;
    };
    inputs = all(x, static_cast<size_t>(first.back() * net.width), true);
    w = all(weights, weight_count(net), true);
    h0 = all(hx, static_cast<size_t>(net.all() * batch * net.states), false);
    c0 = all(cx, static_cast<size_t>(net.all() * batch * net.cells), false);
    kept = reserve == nullptr ? nullptr : reinterpret_cast<double*>(static_cast<char*>(reserve) + kHead);
    if (kept == nullptr) {
      own.resize(static_cast<size_t>(net.all() * first.back() * record.size));
      kept = own.data();
    }
  }

  double* at(int layer, int row) { return kept + (static_cast<size_t>(layer * first.back() + row) * record.size); }
  double input(int layer, int row, int i) {
    if (layer / net.directions == 0) return inputs[static_cast<size_t>(row * net.width + i)];
    return at((layer / net.directions - 1) * net.directions + i / net.states, row)[record.state + i % net.states];
  }
  const double* matrix(int layer, int id) const { return w.data() + place_of(net, layer, id).matrix; }
  double bias(int layer, int id, int i) const {
    return net.biases == 0 ? 0 : w[place_of(net, layer, id).bias + static_cast<size_t>(i)];
  }
  bool is_projected() const { return net.states != net.cells; }

  // Call `visit(row, row before or -1)` in the order of a layer's direction, or against it.
  template <class Visit>
  void for_rows(int layer, int sequence, bool is_backward, Visit&& visit) {
    const int length = lengths[static_cast<size_t>(sequence)];
    const bool is_reversed = layer % net.directions == 1;
    const auto row_of = [&](int turn) {
      return first[static_cast<size_t>(is_reversed ? length - 1 - turn : turn)] + sequence;
    };
    for (int i = 0; i < length; ++i) {
      const int turn = is_backward ? length - 1 - i : i;
      visit(row_of(turn), turn == 0 ? -1 : row_of(turn - 1));
    }
  }

  const double* state_before(int layer, int sequence, int before) {
    return before >= 0 ? at(layer, before) + record.state : h0.data() + (layer * batch + sequence) * net.states;
  }
  const double* cell_before(int layer, int sequence, int before) {
    return before >= 0 ? at(layer, before) + record.cell : c0.data() + (layer * batch + sequence) * net.cells;
  }

  void step(int layer, int sequence, int row, int before) {
    const int gates = net.gates(), cells = net.cells, width = net.inputs(layer);
    double* to = at(layer, row);
    const double* h = state_before(layer, sequence, before);
    for (int gate = 0; gate < gates; ++gate) {
      for (int i = 0; i < cells; ++i) {
        double in = bias(layer, gate, i), hidden = bias(layer, gates + gate, i);
        for (int j = 0; j < width; ++j) in += matrix(layer, gate)[i * width + j] * input(layer, row, j);
        for (int j = 0; j < net.states; ++j) hidden += matrix(layer, gates + gate)[i * net.states + j] * h[j];
        double& made = to[gate * cells + i];
        if (net.cell == kGru && gate == 2) {
          to[record.own + i] = hidden;
          made = std::tanh(in + to[i] * hidden);
        } else if (gates == 1) {
          made = net.cell == kRelu ? std::max(in + hidden, 0.0) : std::tanh(in + hidden);
        } else {
          made = net.cell == kLstm && gate == 2 ? std::tanh(in + hidden) : sigmoid(in + hidden);
        }
      }
    }
    for (int i = 0; i < cells; ++i) {
      double& out = to[record.before + i];
      if (net.cell == kLstm) {
        double& c = to[record.cell + i];
        c = to[cells + i] * cell_before(layer, sequence, before)[i] + to[i] * to[2 * cells + i];
        out = to[3 * cells + i] * std::tanh(c);
      } else {
        out = net.cell == kGru ? (h[i] - to[2 * cells + i]) * to[cells + i] + to[2 * cells + i] : to[i];
      }
    }
    for (int j = 0; j < net.states; ++j) {
      double& state = to[record.state + j];
      state = is_projected() ? 0 : to[record.before + j];
      for (int i = 0; is_projected() && i < cells; ++i) {
        state += matrix(layer, 2 * gates)[j * cells + i] * to[record.before + i];
      }
    }
  }

  void forward(void* y, void* hy, void* cy) {
    for (int layer = 0; layer < net.all(); ++layer) {
      for (int sequence = 0; sequence < batch; ++sequence) {
        int last = -1;
        for_rows(layer, sequence, false, [&](int row, int before) {
          step(layer, sequence, row, before);
          last = row;
        });
        const int64_t to = layer * batch + sequence;
        for (int j = 0; j < net.states; ++j) {
          write(net.type, hy, to * net.states + j, at(layer, last)[record.state + j]);
        }
        for (int i = 0; net.cell == kLstm && i < net.cells; ++i) {
          write(net.type, cy, to * net.cells + i, at(layer, last)[record.cell + i]);
        }
      }
    }
    const int width = net.states * net.directions;
    for (int row = 0; row < first.back(); ++row) {
      for (int j = 0; j < width; ++j) {
        const int layer = (net.layers - 1) * net.directions + j / net.states;
        write(net.type, y, int64_t{row} * width + j, at(layer, row)[record.state + j % net.states]);
      }
    }
  }

  // Replace the gates of a row by their gradients, and those of the states by the ones before.
  void step_back(int layer, int sequence, int row, int before, std::vector<double>* dh, std::vector<double>* dc) {
    const int gates = net.gates(), cells = net.cells;
    double* to = at(layer, row);
    const double* h = state_before(layer, sequence, before);
    std::vector<double> d(static_cast<size_t>(cells)), direct(static_cast<size_t>(net.states));
    for (int j = 0; j < net.states; ++j) to[record.projected + j] = (*dh)[static_cast<size_t>(j)];
    for (int i = 0; i < cells; ++i) {
      double& sum = d[static_cast<size_t>(i)];
      sum = is_projected() ? 0 : (*dh)[static_cast<size_t>(i)];
      for (int j = 0; is_projected() && j < net.states; ++j) {
        sum += matrix(layer, 2 * gates)[j * cells + i] * (*dh)[static_cast<size_t>(j)];
      }
    }
    for (int i = 0; i < cells; ++i) {
      const auto place = static_cast<size_t>(i);
      double *in = to + i, *hidden = to + record.hidden + i;
      if (net.cell == kLstm) {
        const double a = in[0], f = in[cells], g = in[2 * cells], o = in[3 * cells];
        const double bounded = std::tanh(to[record.cell + i]);
        const double c = (*dc)[place] + d[place] * o * (1 - bounded * bounded);
        const double made[] = {c * g * a * (1 - a), c * cell_before(layer, sequence, before)[i] * f * (1 - f),
                               c * a * (1 - g * g), d[place] * bounded * o * (1 - o)};
        for (int gate = 0; gate < 4; ++gate) in[gate * cells] = hidden[gate * cells] = made[gate];
        (*dc)[place] = c * f;
      } else if (net.cell == kGru) {
        const double r = in[0], z = in[cells], n = in[2 * cells];
        const double dn = d[place] * (1 - z) * (1 - n * n);
        in[0] = hidden[0] = dn * to[record.own + i] * r * (1 - r);
        in[cells] = hidden[cells] = d[place] * (h[i] - n) * z * (1 - z);
        in[2 * cells] = dn;
        hidden[2 * cells] = dn * r;
        direct[place] = d[place] * z;
      } else {
        in[0] = hidden[0] = net.cell == kRelu ? (in[0] > 0 ? d[place] : 0) : d[place] * (1 - in[0] * in[0]);
      }
    }
    for (int j = 0; j < net.states; ++j) {
      double& sum = (*dh)[static_cast<size_t>(j)];
      sum = direct[static_cast<size_t>(j)];
      for (int gate = 0; gate < gates; ++gate) {
        for (int i = 0; i < cells; ++i) {
          sum += matrix(layer, gates + gate)[i * net.states + j] * to[record.hidden + gate * cells + i];
        }
      }
    }
  }

  void backward(const void* dy, const void* dhy, const void* dcy, void* dx, void* dhx, void* dcx) {
    const auto given = [&](const void* from, int64_t index) {
      return from == nullptr ? 0 : read(net.type, from, index);
    };
    std::vector<double> grads(static_cast<size_t>(first.back() * net.states * net.directions));
    for (size_t i = 0; i < grads.size(); ++i) grads[i] = read(net.type, dy, static_cast<int64_t>(i));
    for (int level = net.layers - 1; level >= 0; --level) {
      const int width = net.inputs(level * net.directions);
      std::vector<double> below(static_cast<size_t>(first.back() * width));
      for (int layer = level * net.directions; layer < (level + 1) * net.directions; ++layer) {
        for (int sequence = 0; sequence < batch; ++sequence) {
          const int64_t from = layer * batch + sequence;
          std::vector<double> dh(static_cast<size_t>(net.states)), dc(static_cast<size_t>(net.cells));
          for (int j = 0; j < net.states; ++j) dh[static_cast<size_t>(j)] = given(dhy, from * net.states + j);
          for (int i = 0; i < net.cells; ++i) dc[static_cast<size_t>(i)] = given(dcy, from * net.cells + i);
          for_rows(layer, sequence, true, [&](int row, int before) {
            for (int j = 0; j < net.states; ++j) {
              const int place = (row * net.directions + layer % net.directions) * net.states + j;
              dh[static_cast<size_t>(j)] += grads[static_cast<size_t>(place)];
            }
            step_back(layer, sequence, row, before, &dh, &dc);
            for (int gate = 0; gate < net.gates(); ++gate) {
              for (int i = 0; i < net.cells; ++i) {
                const double grad = at(layer, row)[gate * net.cells + i];
                for (int j = 0; j < width; ++j) {
                  below[static_cast<size_t>(row * width + j)] += matrix(layer, gate)[i * width + j] * grad;
                }
              }
            }
          });
          for (int j = 0; j < net.states; ++j) write(net.type, dhx, from * net.states + j, dh[static_cast<size_t>(j)]);
          for (int i = 0; net.cell == kLstm && i < net.cells; ++i) {
            write(net.type, dcx, from * net.cells + i, dc[static_cast<size_t>(i)]);
          }
        }
      }
      grads = below;
    }
    for (size_t i = 0; i < grads.size(); ++i) write(net.type, dx, static_cast<int64_t>(i), grads[i]);
  }

  void backward_weights(void* dw) {
    std::vector<double> sums(weight_count(net));
    const int gates = net.gates(), cells = net.cells;
    for (int layer = 0; layer < net.all(); ++layer) {
      for (int sequence = 0; sequence < batch; ++sequence) {
        for_rows(layer, sequence, false, [&](int row, int before) {
          const double* from = at(layer, row);
          const double* h = state_before(layer, sequence, before);
          for (int id = 0; id < 2 * gates; ++id) {
            const Place place = place_of(net, layer, id);
            const int width = id < gates ? net.inputs(layer) : net.states;
            for (int i = 0; i < cells; ++i) {
              const double grad = from[(id < gates ? 0 : record.hidden) + id % gates * cells + i];
              for (int j = 0; j < width; ++j) {
                sums[place.matrix + static_cast<size_t>(i * width + j)] +=
                    grad * (id < gates ? input(layer, row, j) : h[j]);
              }
              if (net.biases != 0) sums[place.bias + static_cast<size_t>(i)] += grad;
            }
          }
          const size_t projection = place_of(net, layer, 2 * gates).matrix;
          for (int i = 0; is_projected() && i < net.states * cells; ++i) {
            sums[projection + static_cast<size_t>(i)] +=
                from[record.projected + i / cells] * from[record.before + i % cells];
          }
        });
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      write(net.type, dw, place, read(net.type, static_cast<const void*>(dw), place) + sums[i]);
    }
  }

 private:
  const Net& net;
  const Record record;
  const std::vector<int> first, lengths;
  const int batch;
  std::vector<double> inputs, w, h0, c0, own;
  double* kept;
};

// Return whether the descriptors of a call fit together.
inline bool fit(const Net& net, const Rows& in, const Rows& out, const States& h, const States& c) {
  const std::vector<int> hidden{net.all(), in.batch, net.states}, cells{net.all(), in.batch, net.cells};
  return net.is_set && in.is_set && out.is_set && in.type == net.type && out.type == net.type &&
         in.layout == out.layout && in.lengths == out.lengths && in.width == net.width &&
         out.width == net.states * net.directions && (in.layout == 0) == ((net.flags & 1) != 0) && h.type == net.type &&
         h.sizes == hidden && (net.cell != kLstm || (c.type == net.type && c.sizes == cells));
}

// Return whether a call has its spaces, and spoil its workspace.
inline bool has_spaces(const Net& net, size_t weight_bytes, size_t workspace_size, void* workspace) {
  if (weight_bytes != weight_count(net) * net.element() || workspace == nullptr ||
      workspace_size != static_cast<size_t>(workspace_bytes())) {
    return false;
  }
  std::memset(workspace, 0xab, workspace_size);
  return true;
}

// Return whether the reserve is in a state, and set the next.
inline bool pass(void* reserve, uint64_t expected, uint64_t next) {
  if (reserve == nullptr || *static_cast<uint64_t*>(reserve) != expected) return false;
  *static_cast<uint64_t*>(reserve) = next;
  return true;
}

}  // namespace recurrent

extern "C" {

int cudnnCreateRNNDescriptor(recurrent::Net** out) {
  *out = new recurrent::Net();
  return 0;
}
int cudnnDestroyRNNDescriptor(recurrent::Net* net) {
  delete net;
  return 0;
}
int cudnnCreateRNNDataDescriptor(recurrent::Rows** out) {
  *out = new recurrent::Rows();
  return 0;
}
int cudnnDestroyRNNDataDescriptor(recurrent::Rows* rows) {
  delete rows;
  return 0;
}
int cudnnCreateTensorDescriptor(recurrent::States** out) {
  *out = new recurrent::States();
  return 0;
}
int cudnnDestroyTensorDescriptor(recurrent::States* states) {
  delete states;
  return 0;
}
int cudnnCreateDropoutDescriptor(recurrent::Dropout** out) {
  *out = new recurrent::Dropout();
  return 0;
}
int cudnnDestroyDropoutDescriptor(recurrent::Dropout* dropout) {
  delete dropout;
  return 0;
}
int cudnnSetDropoutDescriptor(recurrent::Dropout* dropout, Handle*, float probability, void* states, size_t bytes,
                              unsigned long long) {
  dropout->is_set = true;
  return probability == 0 && states == nullptr && bytes == 0 ? 0 : recurrent::kBad;
}
int cudnnSetTensorNdDescriptor(recurrent::States* states, int type, int dims, const int* sizes, const int* strides) {
  states->type = type;
  states->sizes.assign(sizes, sizes + dims);
  int stride = 1;
  for (int dim = dims - 1; dim >= 0; stride *= sizes[dim--]) {
    if (sizes[dim] < 1 || strides[dim] != stride) return recurrent::kBad;
  }
  return 0;
}

int cudnnSetRNNDescriptor_v8(recurrent::Net* net, int algorithm, int cell, int biases, int directions, int input,
                             int type, int compute, int math, int32_t width, int32_t cells, int32_t states,
                             int32_t layers, recurrent::Dropout* dropout, uint32_t flags) {
  if (dropout == nullptr || !dropout->is_set || input != 0 || compute != (type == 1 ? 1 : 0) || width < 1 ||
      cells < 1 || layers < 1 || states < 1 || states > cells || (states != cells && cell != recurrent::kLstm) ||
      (biases != 0 && biases != 2) || directions > 1 || math == 2) {
    return recurrent::kBad;
  }
  const bool is_standard = algorithm == 0;
  if (cells == 13 || (cells == 14 && !is_standard) || (algorithm == 3 && (cells > 384 || type == 1)) ||
      (states != cells && !is_standard)) {
    return recurrent::kRefused;
  }
  *net = {algorithm, cell, biases, directions + 1, type, math, width, cells, states, layers, flags, true};
  return 0;
}

int cudnnSetRNNDataDescriptor(recurrent::Rows* rows, int type, int layout, int steps, int batch, int width,
                              const int* lengths, void* padding) {
  rows->lengths.assign(lengths, lengths + batch);
  const bool is_sorted = std::is_sorted(rows->lengths.rbegin(), rows->lengths.rend());
  if (steps < 1 || batch < 1 || width < 1 || padding != nullptr || rows->lengths.front() != steps ||
      rows->lengths.back() < 1 || (layout == 0 ? rows->lengths.back() != steps : layout != 1 || !is_sorted)) {
    return recurrent::kBad;
  }
  rows->type = type;
  rows->layout = layout;
  rows->steps = steps;
  rows->batch = batch;
  rows->width = width;
  rows->is_set = true;
  return 0;
}

int cudnnGetRNNWeightSpaceSize(Handle*, recurrent::Net* net, size_t* out) {
  *out = recurrent::weight_count(*net) * net->element();
  return net->is_set ? 0 : recurrent::kBad;
}

int cudnnGetRNNWeightParams(Handle*, recurrent::Net* net, int32_t layer, size_t bytes, const void* weights, int32_t id,
                            recurrent::States* matrix, void** out_matrix, recurrent::States* bias, void** out_bias) {
  const bool is_projection = id == 2 * net->gates() && net->states != net->cells;
  if (bytes != recurrent::weight_count(*net) * net->element() || layer >= net->all() || matrix == nullptr ||
      bias == nullptr || (id >= 2 * net->gates() && !is_projection)) {
    return recurrent::kBad;
  }
  const recurrent::Place place = recurrent::place_of(*net, layer, id);
  auto* base = static_cast<char*>(const_cast<void*>(weights));
  *out_matrix = base + place.matrix * net->element();
  *out_bias = net->biases == 0 || is_projection ? nullptr : base + place.bias * net->element();
  return 0;
}

int cudnnGetRNNTempSpaceSizes(Handle*, recurrent::Net* net, int mode, recurrent::Rows* rows, size_t* workspace,
                              size_t* reserve) {
  if (!net->is_set || !rows->is_set) return recurrent::kBad;
  // The real one refuses sequences of several lengths in persistent kernels.
  if (rows->layout == 1 && net->algorithm != 0) return recurrent::kRefused;
  *workspace = static_cast<size_t>(workspace_bytes());
  *reserve = mode == 1 ? recurrent::reserve_bytes(*net, *rows) : 0;
  return 0;
}

int cudnnRNNForward(Handle* handle, recurrent::Net* net, int mode, const int32_t* lengths, recurrent::Rows* in,
                    const void* x, recurrent::Rows* out, void* y, recurrent::States* h, const void* hx, void* hy,
                    recurrent::States* c, const void* cx, void* cy, size_t weight_bytes, const void* weights,
                    size_t workspace_size, void* workspace, size_t reserve_size, void* reserve) {
  const bool is_lstm = net->cell == recurrent::kLstm;
  if (handle->stream == nullptr) return recurrent::kNoStream;
  if (!recurrent::fit(*net, *in, *out, *h, *c) || lengths != nullptr || x == nullptr || y == nullptr || hx == nullptr ||
      hy == nullptr || (cx != nullptr) != is_lstm || (cy != nullptr) != is_lstm ||
      reserve_size != (mode == 1 ? recurrent::reserve_bytes(*net, *in) : 0) || (reserve != nullptr) != (mode == 1) ||
      !recurrent::has_spaces(*net, weight_bytes, workspace_size, workspace)) {
    return recurrent::kBad;
  }
  if (mode == 1) *static_cast<uint64_t*>(reserve) = recurrent::kIsForward;
  recurrent::Run(*net, *in, x, weights, hx, cx, reserve).forward(y, hy, cy);
  return 0;
}

int cudnnRNNBackwardData_v8(Handle* handle, recurrent::Net* net, const int32_t* lengths, recurrent::Rows* out,
                            const void* y, const void* dy, recurrent::Rows* in, void* dx, recurrent::States* h,
                            const void* hx, const void* dhy, void* dhx, recurrent::States* c, const void* cx,
                            const void* dcy, void* dcx, size_t weight_bytes, const void* weights, size_t workspace_size,
                            void* workspace, size_t reserve_size, void* reserve) {
  const bool is_lstm = net->cell == recurrent::kLstm;
  if (handle->stream == nullptr) return recurrent::kNoStream;
  if (!recurrent::fit(*net, *in, *out, *h, *c) || lengths != nullptr || y == nullptr || dy == nullptr ||
      dx == nullptr || hx == nullptr || dhx == nullptr || (cx != nullptr) != is_lstm || (dcx != nullptr) != is_lstm ||
      (dcy != nullptr && !is_lstm) || reserve_size != recurrent::reserve_bytes(*net, *in) ||
      !recurrent::has_spaces(*net, weight_bytes, workspace_size, workspace) ||
      !recurrent::pass(reserve, recurrent::kIsForward, recurrent::kHasGradients)) {
    return recurrent::kBad;
  }
  recurrent::Run(*net, *in, nullptr, weights, hx, cx, reserve).backward(dy, dhy, dcy, dx, dhx, dcx);
  return 0;
}

int cudnnRNNBackwardWeights_v8(Handle* handle, recurrent::Net* net, int mode, const int32_t* lengths,
                               recurrent::Rows* in, const void* x, recurrent::States* h, const void* hx,
                               recurrent::Rows* out, const void* y, size_t weight_bytes, void* dweights,
                               size_t workspace_size, void* workspace, size_t reserve_size, void* reserve) {
  if (handle->stream == nullptr) return recurrent::kNoStream;
  recurrent::States cells{net->type, {net->all(), in->batch, net->cells}};
  if (!recurrent::fit(*net, *in, *out, *h, cells) || mode != 0 || lengths != nullptr || x == nullptr || hx == nullptr ||
      y == nullptr || dweights == nullptr || reserve_size != recurrent::reserve_bytes(*net, *in) ||
      !recurrent::has_spaces(*net, weight_bytes, workspace_size, workspace) ||
      !recurrent::pass(reserve, recurrent::kHasGradients, recurrent::kHasGradients)) {
    return recurrent::kBad;
  }
  recurrent::Run(*net, *in, x, nullptr, hx, nullptr, reserve).backward_weights(dweights);
  return 0;
}

}  // extern "C"
