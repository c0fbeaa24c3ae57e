#include "programs/programs.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "python/python.h"
#include "record/recorder.h"
#include "sizes/size_families.h"

namespace tiny {
namespace {

// With more groups than this, regions do not move as a whole, and a program for these very offsets is better.
constexpr size_t kMaxGroups = 64;

// Bytes of what is remembered of traces without a program.
constexpr size_t kMaxSeen = size_t{16} << 20;

// Turns of each program of a contest, of which the fastest counts, and how much faster one for a single size has to be.
constexpr uint32_t kTurns = 12;
constexpr double kFaster = 0.95;

auto& families = *new std::unordered_map<Hash, Family, HashHash>;  // never destroyed: its programs hold Python objects
uint64_t uses = 0;
size_t programs = 0, seen_bytes = 0;
uint32_t contests = 0;

std::vector<bool> lifted_in(const Program& program, size_t numbers) {
  std::vector<bool> lifted(numbers, false);
  for (uint32_t position : program.lifted)
    if (position < lifted.size()) lifted[position] = true;
  return lifted;
}

// Of the numbers that are constants, and of the offsets of what stays.
Hash constants_of(const Inputs& inputs, const std::vector<bool>& lifted, const Moves& moves) {
  Hash hash;
  for (size_t r = 0; r < inputs.offsets.size(); r++) {
    const uint32_t group = moves.group.empty() ? 0 : moves.group[r];
    const int64_t from = group == 0 ? 0 : inputs.offsets[moves.leaders[group - 1]];
    hash.add(static_cast<uint64_t>(inputs.offsets[r] - from));
  }
  for (size_t i = 0; i < inputs.numbers.size(); i++)
    if (!lifted[i]) hash.add(static_cast<uint64_t>(inputs.numbers[i].i));
  return hash;
}

// The groups of `before`, split where regions went different ways.
Moves split(const Moves& before, const Trace& trace, const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  Moves moves;
  std::map<std::tuple<uint32_t, int32_t, int64_t>, uint32_t> numbers;
  for (size_t r = 0; r < to.size(); r++) {
    const uint32_t old = before.group.empty() ? 0 : before.group[r];
    const int64_t moved = to[r] - from[r];
    if (old == 0 && moved == 0) {
      moves.group.push_back(0);
      continue;
    }
    const auto [found, is_new] = numbers.try_emplace({old, trace.regions[r].storage, moved}, numbers.size() + 1);
    if (is_new) moves.leaders.push_back(static_cast<uint32_t>(r));
    if (numbers.size() > kMaxGroups) return {};
    moves.group.push_back(found->second);
  }
  return moves.leaders.empty() ? Moves{} : moves;
}

// What of a storage's size a program always depends on: which types fill it, and whether 32 bits tell its elements apart.
size_t size_kind(size_t nbytes) { return nbytes % 16 + (nbytes >> 31 ? 16 : 0); }

void forget_seen(Family& family) {
  seen_bytes -= family.seen.bytes();
  family.seen = {};
}

}  // namespace

Inputs Inputs::of(const Trace& trace) {
  Inputs inputs{trace.numbers, {}};
  inputs.offsets.reserve(trace.regions.size());
  for (const Region& region : trace.regions) inputs.offsets.push_back(region.offset * static_cast<int64_t>(c10::elementSize(region.dtype)));
  return inputs;
}

void Varying::widen(const Trace& trace, const Inputs& before, const Inputs& now) {
  for (size_t i = 0; i < now.numbers.size(); i++)
    if (!(before.numbers[i] == now.numbers[i])) numbers[i] = true;
  moves = split(moves, trace, before.offsets, now.offsets);
}

Entry* Family::find(const Trace& trace, const Inputs& inputs) {
  for (Entry& entry : entries)
    if (entry.program->fits(trace) && entry.program->constants == constants_of(inputs, entry.lifted, entry.moves)) return &entry;
  return nullptr;
}

Hash key_of(const Trace& trace) {
  Hash key = trace.key;
  key.add(static_cast<uint64_t>(trace.device));
  const bool any_size = trace.is_piece && shares_host_memory();
  for (size_t s = 0; s < trace.storages.size(); s++) {
    const Storage& storage = *trace.storages[s];
    const size_t size = any_size && storage.buffer ? size_kind(storage.nbytes) : storage.nbytes;
    key.add((size << 2) | (trace.live[s] ? 1 : 0) | (storage.buffer ? 2 : 0));
  }
  for (const Number& number : trace.numbers) key.add(static_cast<uint64_t>(number.is_float));
  return key;
}

Family& family_of(const Hash& key, const Trace& trace) {
  const auto [found, is_new] = families.try_emplace(key);
  Family& family = found->second;
  if (!is_new) return family;
  // Seeds and offsets of random operators differ at every flush.
  family.varying.numbers.resize(trace.numbers.size(), false);
  for (const Node& node : trace.nodes)
    for (uint32_t r = node.outs - (node.op->random ? 2 : 0); r < node.outs; r++) family.varying.numbers[trace.refs[r].index] = true;
  return family;
}

Hash name_of(const Hash& key, const Varying& varying, const Inputs& inputs) {
  Hash name = key;
  const Hash constants = constants_of(inputs, varying.numbers, varying.moves);
  name.add(constants.a), name.add(constants.b);
  for (bool varies : varying.numbers) name.add(uint64_t{varies});
  for (uint32_t group : varying.moves.group) name.add(uint64_t{group});
  return name;
}

void note_compiled_for(Program& program, const Inputs& inputs, const Varying& varying) {
  program.constants = constants_of(inputs, lifted_in(program, inputs.numbers.size()), varying.moves);
  program.origins.clear();
  for (uint32_t leader : varying.moves.leaders) program.origins.push_back(inputs.offsets[leader]);
}

bool has_constants(const Program& program, const Inputs& inputs, const Varying& varying) {
  return program.origins.size() == varying.moves.leaders.size() &&
         program.constants == constants_of(inputs, lifted_in(program, inputs.numbers.size()), varying.moves);
}

Entry& add_program(Family& family, std::shared_ptr<Program> program, Inputs inputs, const Varying& varying) {
  const std::vector<bool> lifted = lifted_in(*program, inputs.numbers.size());
  const size_t before = family.entries.size();
  auto superseded = [&](const Entry& old) { return old.lifted != lifted || old.moves.group != varying.moves.group; };
  family.entries.erase(std::remove_if(family.entries.begin(), family.entries.end(), superseded), family.entries.end());
  programs -= before - family.entries.size();
  family.entries.push_back({std::move(program), lifted, std::move(inputs), varying.moves, 0});
  programs++;
  forget_seen(family);
  family.sights = 0;
  return family.entries.back();
}

void enter_contest(Entry& entry, std::shared_ptr<Program> rival) {
  if (lifted_in(*rival, entry.inputs.numbers.size()) != entry.lifted) return entry.contest.reset();
  entry.contest->request.reset();
  entry.contest->rival = std::move(rival);
}

uint32_t& contests_held() { return contests; }

void note_turn(Entry& entry, double milliseconds) {
  Contest& contest = *entry.contest;
  double& best = contest.best[contest.turns % 2];
  best = contest.turns < 2 ? milliseconds : std::min(best, milliseconds);
  if (++contest.turns < 2 * kTurns) return;
  if (contest.best[1] < kFaster * contest.best[0]) entry.program = contest.rival;
  entry.contest.reset();
}

void note_sight(Family& family, Inputs inputs) {
  forget_seen(family);
  family.sights++;
  family.seen = std::move(inputs);
  seen_bytes += family.seen.bytes() + sizeof(Family);
  if (seen_bytes <= kMaxSeen) return;
  seen_bytes = 0;
  for (auto it = families.begin(); it != families.end();) {
    const Family& other = it->second;
    if (&other != &family && other.entries.empty() && other.request == nullptr) {
      it = families.erase(it);
    } else {
      seen_bytes += other.seen.bytes();
      ++it;
    }
  }
}

std::vector<Number> arguments_of(const Inputs& inputs, const Entry& entry) {
  std::vector<Number> numbers = inputs.numbers;
  for (size_t i = 0; i < entry.moves.leaders.size(); i++) {
    Number shift{};
    shift.i = inputs.offsets[entry.moves.leaders[i]] - entry.program->origins[i];
    numbers.push_back(shift);
  }
  return numbers;
}

void note_use(Entry& entry) { entry.last_use = ++uses; }

void evict_programs() {
  if (programs <= program_bound()) return;
  auto oldest_of = [](const Family& family) {
    auto older = [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; };
    return std::min_element(family.entries.begin(), family.entries.end(), older);
  };
  auto found = families.end();
  for (auto it = families.begin(); it != families.end(); ++it)
    if (!it->second.entries.empty() && (found == families.end() || oldest_of(it->second)->last_use < oldest_of(found->second)->last_use))
      found = it;
  Family& family = found->second;
  family.entries.erase(family.entries.begin() + (oldest_of(family) - family.entries.begin()));
  programs--;
  if (!family.entries.empty() || family.request != nullptr) return;
  forget_seen(family);
  families.erase(found);
}

size_t& program_bound() {
  static size_t bound = 1024;
  return bound;
}

void clear_programs() {
  DeviceLock lock;
  families.clear();
  programs = seen_bytes = contests = 0;
  clear_size_families();
}

}  // namespace tiny
