// The programs of traces, by key: families of traces that differ only in their numbers and offsets.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "programs/program.h"

namespace tiny {

// How the program was come by that a trace is run with.
enum class Way : uint8_t { Replay, Compile, Load, Direct };

// Regions that lie elsewhere at every flush, in groups that keep their distances.
struct Moves {
  std::vector<uint32_t> group;    // of each region: 0 where it stays, else the number of its group
  std::vector<uint32_t> leaders;  // of each group, counted from 1, the first region
};

// The numbers of a trace and where its regions lie, in bytes.
struct Inputs {
  std::vector<Number> numbers;
  std::vector<int64_t> offsets;

  static Inputs of(const Trace& trace);
  size_t bytes() const { return numbers.size() * sizeof(Number) + offsets.size() * sizeof(int64_t); }
};

// What became an input of a program because it had been seen to differ.
struct Varying {
  std::vector<bool> numbers;
  Moves moves;

  // Takes in what differs between a trace as it was and as it is.
  void widen(const Trace& trace, const Inputs& before, const Inputs& now);
};

// A size that comes again and again may be worth a program of its own: it is compiled behind, both run in turns for a while,
// and the faster one stays.
struct Contest {
  uint32_t runs = 0;
  std::optional<Hash> request;     // for the rival
  std::shared_ptr<Program> rival;  // compiled for this size alone
  uint32_t turns = 0;
  double best[2] = {};  // milliseconds of the fastest turn, the rival's second

  bool is_rivals_turn() const { return rival != nullptr && turns % 2 == 1; }
};

struct Entry {
  std::shared_ptr<Program> program;
  std::vector<bool> lifted;
  Inputs inputs;  // that it was compiled or found with
  Moves moves;
  uint64_t last_use = 0;
  std::shared_ptr<Contest> contest = nullptr;  // where the program is one for many sizes, until it is decided
};

// Lets a rival take part whose inputs are the program's; and, after a turn, decides when both have had enough of them.
void enter_contest(Entry& entry, std::shared_ptr<Program> rival);
void note_turn(Entry& entry, double milliseconds);
uint32_t& contests_held();  // since there were no programs

// A program that another process is compiling.
struct Request {
  Hash name;
  Inputs inputs;
  Varying varying;
};

struct Family {
  std::vector<Entry> entries;
  Varying varying;
  Inputs seen;            // as it came last without a program
  uint32_t sights = 0;    // how often it came without a program
  uint32_t next_ask = 1;  // the sight from which on it is asked for; later after each failure
  uint32_t refusals = 0;  // requests that failed for good
  std::unique_ptr<Request> request;

  Entry* find(const Trace& trace, const Inputs& inputs);
};

// The family of a trace, by its key, the sizes and liveness of its storages, and the types of its numbers. Steps of a loop are
// the same however long the arrays are that they take their parts of: whether a program fits those, it says itself.
Hash key_of(const Trace& trace);
Family& family_of(const Hash& key, const Trace& trace);

// The name of a family's program that has `varying` as inputs, and `inputs` otherwise as constants.
Hash name_of(const Hash& key, const Varying& varying, const Inputs& inputs);

// Takes a program up that fits `inputs`. Those it supersedes go.
Entry& add_program(Family& family, std::shared_ptr<Program> program, Inputs inputs, const Varying& varying);

// Notes what a program was compiled for.
void note_compiled_for(Program& program, const Inputs& inputs, const Varying& varying);

// Whether a program was compiled for these numbers and offsets, but for those that vary.
bool has_constants(const Program& program, const Inputs& inputs, const Varying& varying);

// Notes that a family came without a program. What was seen only once is forgotten where that would take too much memory.
void note_sight(Family& family, Inputs inputs);

// The trace's numbers, and by how many bytes each group is away from where it was when the program was compiled.
std::vector<Number> arguments_of(const Inputs& inputs, const Entry& entry);

void note_use(Entry& entry);
void evict_programs();    // the least recently used, where there are too many
size_t& program_bound();  // programs kept at most
void clear_programs();

}  // namespace tiny
