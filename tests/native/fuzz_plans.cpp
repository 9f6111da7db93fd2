// SPDX-License-Identifier: BSD-3-Clause
// Plan texts with random changes. Each is read and evaluated, or refused with ValueError.
// `fuzz_plans COUNT SEED`.
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/chunk_plan.h"
#include "kernels/plan.h"

namespace {

using outboard::kernels::ArgumentKinds;
using outboard::kernels::ChunkPlan;
using outboard::kernels::Plan;
using outboard::kernels::read_kinds;

constexpr size_t kLongest = 4000;
constexpr size_t kCorpus = 3000;

const char* const kBegin[] = {
    "plan 1\nvalue size 0 1\nvalue stride 0 0\nvalue element 3 1\nvalue number 3\nguard a0 64 ge\nnumber 2 "
    "float32\nseed\n"
    "allocate float32 [a0, 4] [4, 1]\nview b2 [4, a0] [1, 4] 0\nlaunch 0 [t0, b0, b2, a0 4 mul]\n"
    "call 1 aten::mm [t0, b2]\ncopy t0 b2\nfree b3\nreturn b2\nreturn none\nreturn [b2, b0]\nreturn number a0\n",
    "plan 1\nvalue size 1 0\nallocate int64 [a0] [1]\ncall 2 aten::foo.bar [none, true, false, real -0x1.8p+1, real "
    "inf, "
    "real nan, numbers 1; 2; a0 -1 floordiv, tensors t0; b0, 9223372036854775807, -9223372036854775808 a0 mod]\n"
    "return b1\n",
    "chunks 1\ncolumn list 0 w\ncolumn list 1 r\ncolumn number 2 float64\nargument tensor 3 r\n",
    "chunks 1\ncolumn list 0 r\ncolumn fresh float32\ncolumn element 5 r\ncolumn chunk\nargument number 4 float64\n"
    "join float32 float16 any\n",
};

const char* const kWords[] = {"plan 1\n",
                              "value ",
                              "size ",
                              "stride ",
                              "element ",
                              "number ",
                              "guard ",
                              "allocate ",
                              "view ",
                              "launch ",
                              "call ",
                              "copy ",
                              "free ",
                              "return ",
                              "none",
                              "[",
                              "]",
                              ",",
                              ";",
                              " ",
                              "\n",
                              "t0",
                              "b0",
                              "b65535",
                              "t65535",
                              "a0",
                              "a65535",
                              "65535",
                              "65536",
                              "4294967295",
                              "4294967296",
                              "-1",
                              "9223372036854775807",
                              "-9223372036854775808",
                              "add",
                              "sub",
                              "mul",
                              "floordiv",
                              "ceildiv",
                              "mod",
                              "min",
                              "max",
                              "float32",
                              "real ",
                              "0x",
                              "0x1p-1074",
                              "0x1p99999",
                              "numbers",
                              "tensors",
                              "inf",
                              "nan",
                              "-",
                              "\t",
                              "63",
                              "64",
                              "seed\n",
                              "aten::mm",
                              "chunks 1\n",
                              "column ",
                              "list ",
                              "fresh ",
                              "element ",
                              "chunk",
                              "argument ",
                              "tensor ",
                              "join ",
                              "any",
                              "some",
                              " r",
                              " w"};

const int64_t kNumbers[] = {0, 1, -1, 2, INT64_MAX, INT64_MIN, int64_t{1} << 62, 4096};

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed), corpus_(std::begin(kBegin), std::end(kBegin)) {}

  // Return false, with the text on stderr, if it raised anything but ValueError.
  bool step() {
    std::string text = pick(corpus_);
    for (size_t changes = 1 + below(6); changes > 0; --changes) {
      change(text);
    }
    text.resize(std::min(text.size(), kLongest));
    try {
      below(8) == 0 ? read_chunks(text) : read(text);
      ++taken;
      if (corpus_.size() < kCorpus) {
        corpus_.push_back(text);
      } else if (below(20) == 0) {
        corpus_[std::size(kBegin) + below(kCorpus - std::size(kBegin))] = text;
      }
    } catch (const c10::ValueError&) {
      ++refused;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "raised %s\nby the text\n%s\n", error.what(), text.c_str());
      return false;
    }
    return true;
  }

  size_t taken = 0;
  size_t refused = 0;

 private:
  size_t below(size_t end) { return random_() % end; }

  template <typename Items>
  std::string pick(const Items& items) {
    return items[below(std::size(items))];
  }

  void change(std::string& text) {
    const size_t at = text.empty() ? 0 : below(text.size());
    switch (below(6)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random_());
        break;
      case 1:
        text.insert(at, pick(kWords));
        break;
      case 2:
        text.erase(at, 1 + below(8));
        break;
      case 3: {
        const std::string other = pick(corpus_);
        if (!other.empty()) text.insert(at, other.substr(below(other.size()), below(60)));
        break;
      }
      case 4:
        if (const size_t end = text.find_first_of(" ,]\n", at); end != std::string::npos) {
          text.replace(at, end - at, pick(kWords));
        }
        break;
      default:
        if (const size_t end = text.find('\n', at); end != std::string::npos) {  // a line twice
          const size_t before = text.rfind('\n', at);
          const size_t begin = before == std::string::npos || before == end ? 0 : before + 1;
          text.insert(end + 1, text.substr(begin, end + 1 - begin));
        }
    }
  }

  void read(const std::string& text) {
    static const std::vector<ArgumentKinds> kernels = {read_kinds("a", "rrwi"), read_kinds("b", "r"), {}};
    const Plan plan(text, kernels);
    std::vector<int64_t> values(plan.values().size());
    for (int64_t& value : values) {
      value = kNumbers[below(std::size(kNumbers))];
    }
    static_cast<void>(plan.holds(values));
    static_cast<void>(plan.numbers(values));
  }

  void read_chunks(const std::string& text) { const ChunkPlan one(text, {read_kinds("a", "tiir")}); }

  std::mt19937_64 random_;
  std::vector<std::string> corpus_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "fuzz_plans COUNT SEED\n");
    return 2;
  }
  Fuzzer fuzzer(std::strtoull(arguments[2], nullptr, 10));
  for (size_t left = std::strtoull(arguments[1], nullptr, 10); left > 0; --left) {
    if (!fuzzer.step()) {
      return 1;
    }
  }
  std::printf("%zu texts were taken and %zu refused\n", fuzzer.taken, fuzzer.refused);
  return fuzzer.taken > 0 && fuzzer.refused > 0 ? 0 : 1;
}
