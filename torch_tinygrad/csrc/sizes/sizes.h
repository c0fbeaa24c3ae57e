// Traces that differ in sizes alone, and the one program for all of them.
//
// A trace's integers are its sizes, strides, offsets, bytes, numbers and integer arguments, in a fixed order (`Integers`,
// trace/integers.py); then the loop it ends in: nodes before it, nodes of a step, steps. Of a loop the first two steps are
// listed. Where two traces have the same structure, those integers that differ are taken for polynomials in a few
// variables, and the compiler makes one program for a range of each variable: `SizedProgram`. Whether a trace is one of
// its traces is decided here by checking every integer; its program is then an ordinary one, with numbers filled in.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "programs/program.h"

namespace tiny {

struct Integers {
  Hash structure;  // of everything else; sizes that are 0 or 1 make another structure
  Hash sizes;      // and strides; without numbers and offsets, for which programs have inputs of their own
  std::vector<int64_t> values;

  static Integers of(const Trace& trace);
};

// A sum of products of variables.
struct Polynomial {
  struct Term {
    int64_t factor;
    std::array<uint8_t, 4> powers;
  };
  std::vector<Term> terms;
  int64_t divisor = 1;

  int64_t at(const std::vector<int64_t>& variables) const;
};

class SizedProgram {
 public:
  // The integer at a position, in units; with `stride`, how many of the integer there it is, and `rest` more; with `less`, how much
  // greater that is than another variable. -1 for none.
  struct Variable {
    int32_t position, stride, less;
    int64_t rest, unit, low, high;
  };
  struct Form {
    uint32_t position;
    Polynomial value;
  };
  // An entry of the table of sizes that is a number with a fraction: a factor, times powers of polynomials.
  struct Fraction {
    uint32_t position;
    double factor;
    std::vector<std::pair<Polynomial, double>> powers;
  };

  // Positions of numbers that are inputs: so many, and where `counted`, so many more than the loop has steps.
  struct Run {
    int64_t start, step, length, counted;
  };

  std::vector<int64_t> constants;  // the integers of the trace, where no form is given
  std::vector<uint32_t> free;      // integers that may be anything: numbers that are inputs of the program
  std::vector<Variable> variables;
  std::vector<Form> used;      // what is taken off a variable, which stands at that position of them: a form of those before it
  std::vector<Form> integers;  // of the trace
  std::vector<Form> filled;    // of the program, by `HostProgram::each_integer`
  std::vector<Fraction> fractions;
  std::shared_ptr<HostProgram> program;
  bool repeats = false;           // its traces end in a loop of any number of steps, which is their last integer
  std::vector<Run> floats, ints;  // then the program's inputs, by type

  // The variables of a trace, if it is one of these traces.
  std::optional<std::vector<int64_t>> match(const std::vector<int64_t>& values) const;
  std::shared_ptr<HostProgram> at(const std::vector<int64_t>& variables) const;
  // For people: which sizes of the trace vary, from where to where; and why a trace is none of these.
  std::string describe(const Trace& trace) const;
  std::string why_not(const Trace& trace, const std::vector<int64_t>& values) const;

  std::optional<std::string> to_bytes() const;
  static std::shared_ptr<SizedProgram> read_from(std::string_view bytes);  // none where they are damaged

 private:
  // The values of the variables; fewer where one has none, or one outside of its range.
  std::vector<int64_t> variables_of(const std::vector<int64_t>& values) const;
};

// Whether there are such programs: TORCH_TINY_SIZES, unless it was set otherwise.
bool& sizes_vary();

}  // namespace tiny
