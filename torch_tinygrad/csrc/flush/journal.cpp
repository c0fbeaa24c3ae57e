#include "flush/journal.h"

#include <ATen/SequenceNumber.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/function.h>

#include <deque>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "device/device.h"
#include "programs/program.h"
#include "record/recorder.h"

namespace tiny {

std::atomic<uint8_t> watchers{0};
uint64_t (*current_correlation)() = nullptr;
std::string (*current_source)() = nullptr;

namespace {

std::vector<FlushNote> notes[2];
FlushNote note;

// The source of each pending node, by device; and of each of autograd's nodes, whose backward pass then has it too.
std::deque<std::string> sources[kMaxDevices];
std::unordered_map<uint64_t, std::string> sources_of_autograd;

size_t index_of(Watcher who) { return who == Watcher::Profiler ? 0 : 1; }

std::string described(const Trace& trace, const Region& region) {
  std::ostringstream text;
  text << c10::toString(region.dtype) << '[';
  for (uint32_t i = 0; i < region.ndim; i++) text << (i ? ", " : "") << trace.ints[region.shape + i];
  text << ']';
  return text.str();
}

NodeNote note_of(const Trace& trace, const Node& node) {
  NodeNote made{node.op->name, "", "", 0, false};
  for (uint32_t r = node.args; r < node.end; r++) {
    if (trace.refs[r].kind != ArgRef::Kind::Region) continue;
    const Region& region = trace.regions[trace.refs[r].index];
    const at::IntArrayRef sizes(trace.ints.data() + region.shape, region.ndim);
    made.bytes += c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(region.dtype));
    if (r < node.outs) continue;
    made.results += (made.results.empty() ? "" : ", ") + described(trace, region);
    made.kept |= trace.live[region.storage];
  }
  return made;
}

}  // namespace

int64_t now() { return c10::getTime(); }

void watch(Watcher who, bool on) {
  DeviceLock lock;
  const auto bit = static_cast<uint8_t>(who);
  if (on) notes[index_of(who)].clear();
  if (who == Watcher::Explain) {
    for (auto& list : sources) list.clear();
    sources_of_autograd.clear();
  }
  watchers = on ? watchers | bit : watchers & ~bit;
}

std::vector<FlushNote> take_notes(Watcher who) {
  DeviceLock lock;
  return std::exchange(notes[index_of(who)], {});
}

void note_source(const Trace& trace) {
  std::string source;
  if (const auto node = torch::autograd::get_current_node()) {
    const auto found = sources_of_autograd.find(node->sequence_nr());
    if (found != sources_of_autograd.end()) source = "backward of " + found->second;
  }
  if (source.empty() && current_source != nullptr) {
    source = current_source();
    // Autograd has just numbered the node of the operator that is being recorded.
    if (!source.empty() && at::sequence_number::peek() > 0) sources_of_autograd.emplace(at::sequence_number::peek() - 1, source);
  }
  auto& list = sources[trace.device];
  list.resize(trace.nodes.size());
  if (!list.empty()) list.back() = std::move(source);
}

Noted::Noted(const Trace& trace, const char* reason) : active_(watched()) {
  if (!active_) return;
  note = {trace.device, reason, "", current_correlation ? current_correlation() : 0, 0, now(), 0, 0, 0, {}, {}};
  if (!watched_by(Watcher::Explain)) return;
  auto& list = sources[trace.device];
  for (size_t n = 0; n < trace.nodes.size(); n++) {
    note.nodes.push_back(note_of(trace, trace.nodes[n]));
    if (list.empty()) continue;
    note.nodes.back().source = std::move(list.front());
    list.pop_front();  // those of later pieces of a trace stay
  }
}

void note_step(std::string text, int64_t start, int64_t end) { note.steps.push_back({std::move(text), start, end}); }

// A program's steps ran one after the other, up to now.
void Noted::ran(const char* way, const Program* program, double compiling) {
  if (!active_) return;
  done_ = true;
  note.end = now();
  note.way = way;
  note.compiling = compiling;
  if (program == nullptr) return;
  note.kernels = program->kernels;
  note.bytes_moved = program->bytes_moved;
  double before = 0;
  for (double time : program->times) before += time;
  for (size_t i = 0; i < program->description.size() && i < program->times.size(); i++) {
    const auto start = note.end - static_cast<int64_t>(1000 * before);
    before -= program->times[i];
    note_step(program->description[i], start, note.end - static_cast<int64_t>(1000 * before));
  }
  if (program->times.empty()) note_step("program", note.start, note.end);  // of a device that times no steps
}

Noted::~Noted() {
  if (!active_ || !done_) return;
  for (Watcher who : {Watcher::Profiler, Watcher::Explain})
    if (watched_by(who)) notes[index_of(who)].push_back(note);
}

}  // namespace tiny
