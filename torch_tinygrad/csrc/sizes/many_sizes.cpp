#include "sizes/many_sizes.h"

#include <cstdio>

#include "flush/flush.h"
#include "programs/compile.h"
#include "programs/disk.h"
#include "programs/service.h"
#include "python/python.h"
#include "record/recorder.h"
#include "sizes/size_families.h"
#include "sizes/size_marks.h"

namespace tiny {
namespace {

// Nodes of a trace that is compiled for many sizes, which takes several times as long; and how often one structure is
// asked for, as new sizes lie outside of what is there or do not follow from each other as they did; where none was made,
// less often.
constexpr size_t kMostNodes = 4096;
constexpr uint32_t kMaxAsked = 8, kMaxRefused = 3;

// Flushes that a trace with a size that is said to vary waits for another one.
constexpr uint32_t kPatience = 8;

// Flushes after which a size may be worth a program of its own, and how many are asked for.
constexpr uint32_t kHot = 100, kMostHot = 32;

Hash sized_name(Hash structure, uint64_t number) {
  structure.add("sizes");
  structure.add(number);
  return structure;
}

void note_not_variable(SizeFamily& sizes, const std::string& reason) {
  forget_sizes_without_program(sizes);
  stats().not_variable[reason.substr(0, reason.find('\n'))]++;
  if (debug_level() >= 1) std::fprintf(stderr, "tiny: no one program for these sizes: %s\n", reason.c_str());
}

void add_sized(SizeFamily& sizes, std::shared_ptr<SizedProgram> program, const Hash& structure, const Trace& trace) {
  if (debug_level() >= 1) std::fprintf(stderr, "tiny: one program for many sizes: %s\n", program->describe(trace).c_str());
  if (const auto bytes = program->to_bytes()) save_bytes(sized_name(structure, 0), *bytes);
  add_program_for(sizes, std::move(program));
}

// What another process has compiled meanwhile, or another program has left on disk.
void take_up(SizeFamily& sizes, const Hash& structure, const Trace& trace, Way& way) {
  if (!sizes.looked_on_disk) {
    sizes.looked_on_disk = true;
    if (const auto bytes = load_bytes(sized_name(structure, 0)))
      if (auto program = SizedProgram::read_from(*bytes)) sizes.programs.push_back(std::move(program)), way = Way::Load;
  }
  if (!sizes.request) return;
  const std::optional<Reply> reply = take_reply(*sizes.request);
  if (!reply) return;
  sizes.request.reset();
  auto program = reply->failure.empty() ? SizedProgram::read_from(reply->program) : nullptr;
  if (program == nullptr) return note_not_variable(sizes, reply->failure.empty() ? "its bytes are damaged" : reply->failure);
  add_sized(sizes, std::move(program), structure, trace);
  way = Way::Compile;
}

// The program for this trace's sizes, filled in and kept as its own.
Entry* resized(Family& family, const SizeFamily& sizes, const Trace& trace, const Integers& integers, const Inputs& inputs) {
  for (auto it = sizes.programs.rbegin(); it != sizes.programs.rend(); ++it) {
    const auto variables = (*it)->match(integers.values);
    if (!variables) continue;
    const std::shared_ptr<HostProgram> program = (*it)->at(*variables);
    const Varying varying{family.varying.numbers, {}};
    program->storage_sizes.clear();
    for (const StoragePtr& storage : trace.storages) program->storage_sizes.push_back(static_cast<int64_t>(storage->nbytes));
    note_compiled_for(*program, inputs, varying);
    Entry& entry = add_program(family, program, inputs, varying);
    entry.contest = std::make_shared<Contest>();
    return &entry;
  }
  return nullptr;
}

}  // namespace

Entry* find_of_many_sizes(Family& family, const Trace& trace, Mode mode, const Inputs& inputs, Way& way) {
  if (!sizes_vary() || !shares_host_memory() || trace.nodes.size() > kMostNodes) return nullptr;
  Integers integers = Integers::of(trace);
  SizeFamily& sizes = size_family_of(integers.structure);
  take_up(sizes, integers.structure, trace, way);
  if (Entry* entry = resized(family, sizes, trace, integers, inputs)) return entry;
  way = Way::Replay;
  const Hash structure = integers.structure;
  if (debug_level() >= 1 && !sizes.programs.empty())
    std::fprintf(stderr, "tiny: a new program, since %s\n", sizes.programs.back()->why_not(trace, integers.values).c_str());
  const bool has_others = note_sizes(sizes, std::move(integers));
  if (!has_others || sizes.request || sizes.asked >= (sizes.programs.empty() ? kMaxRefused : kMaxAsked)) return nullptr;
  sizes.asked++;
  const std::vector<bool>& varying = family.varying.numbers;
  const Hash name = sized_name(structure, sizes.asked);
  if (mode != Mode::Always && mode != Mode::Mixed && ask_for_program(name, trace, varying, {}, sizes.seen)) {
    sizes.request = name;
    return nullptr;
  }
  try {
    add_sized(sizes, compile_sizes(trace, varying, sizes.seen), structure, trace);
  } catch (const CompileFailed& failure) {
    if (failure.interrupt) throw;
    forget_python_error();
    note_not_variable(sizes, failure.message);
    return nullptr;
  }
  Entry* entry = resized(family, sizes, trace, Integers::of(trace), inputs);
  if (entry != nullptr) way = Way::Compile;
  return entry;
}

bool waits_for_another_size(const Family& family, const Trace& trace, Mode mode) {
  if (!sizes_vary() || !shares_host_memory() || mode == Mode::Never || family.sights >= kPatience) return false;
  return has_marked_variable(trace) && size_family_of(Integers::of(trace).structure).asked == 0;
}

void look_for_rival(Entry& entry, const Trace& trace, const Hash& key, const Inputs& inputs) {
  if (entry.contest == nullptr || entry.contest->rival != nullptr) return;
  Contest& contest = *entry.contest;
  const Varying varying{entry.lifted, {}};
  if (contest.request) {
    std::optional<Answer> answer = take_answer(*contest.request, trace.device);
    if (!answer) return;
    if (answer->program == nullptr) return entry.contest.reset();
    note_compiled_for(*answer->program, inputs, varying);
    save_program(*contest.request, *answer->program);
    stats().compiles++;
    return enter_contest(entry, std::move(answer->program));
  }
  if (++contest.runs < kHot) return;
  const Hash name = name_of(key, varying, inputs);
  if (contests_held() == kMostHot || !ask_for_program(name, trace, varying.numbers, {})) return entry.contest.reset();
  contests_held()++;
  contest.request = name;
}

}  // namespace tiny
