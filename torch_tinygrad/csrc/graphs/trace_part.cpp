#include "graphs/trace_part.h"

#include <c10/util/accumulate.h>

#include "record/looks.h"
#include "record/recorder.h"

namespace tiny {
namespace {

RandomSlice random_state(c10::DeviceIndex device) { return take_random(std::nullopt, device, 0); }

// How many random numbers a node took: four for each element of its largest tensor.
int64_t drawn_by(const Trace& trace, const Node& node) {
  int64_t count = 4;
  for (uint32_t r = node.args; r < node.writes; r++) {
    if (trace.refs[r].kind != ArgRef::Kind::Region) continue;
    const Region& region = trace.regions[trace.refs[r].index];
    count = std::max(count, 4 * c10::multiply_integers(c10::IntArrayRef(trace.ints.data() + region.shape, region.ndim)));
  }
  return count;
}

class Taking {
 public:
  Taking(const Mark& mark, const Trace& trace, std::unordered_map<Storage*, int>& numbers)
      : mark_(mark), trace_(trace), numbers_(numbers), random_(mark.random) {}

  std::optional<TracePart> run(c10::ArrayRef<Storage*> given) {
    if (trace_.serial != mark_.serial || looks != mark_.looks || trace_.nodes.size() == mark_.nodes) return std::nullopt;
    for (size_t i = 0; i < given.size(); i++)
      if (given[i] != nullptr) local(given[i], static_cast<int>(i));
    kept_.bytes = trace_.bytes - mark_.bytes;
    kept_.ints.assign(trace_.ints.begin() + mark_.ints, trace_.ints.end());
    kept_.numbers.assign(trace_.numbers.begin() + mark_.numbers, trace_.numbers.end());
    kept_.values.assign(trace_.values.begin() + mark_.values, trace_.values.end());
    references();
    if (!regions() || !nodes()) return std::nullopt;
    const RandomSlice now = random_state(trace_.device);
    if (now.seed != random_.seed || now.offset != random_.offset) return std::nullopt;
    part_.hash.add(c10::IntArrayRef(kept_.ints));
    for (const Number& number : kept_.numbers) part_.hash.add(static_cast<uint64_t>(number.i));
    return std::move(part_);
  }

 private:
  int local(Storage* storage, int given) {
    const auto [it, is_new] = numbers_.try_emplace(storage, static_cast<int>(part_.locals.size()));
    if (is_new) {
      part_.locals.push_back({given, storage->nbytes, false, false, false, storage->contents});
      part_.hash.add(static_cast<uint64_t>(given)), part_.hash.add(storage->nbytes);
    }
    return it->second;
  }

  void references() {
    for (size_t i = mark_.refs; i < trace_.refs.size(); i++) {
      ArgRef ref = trace_.refs[i];
      if (ref.kind == ArgRef::Kind::Region) ref.index -= mark_.regions;
      if (ref.kind == ArgRef::Kind::Number) ref.index -= mark_.numbers;
      if (ref.kind == ArgRef::Kind::Value) ref.index -= mark_.values;
      kept_.refs.push_back(ref);
      part_.hash.add(static_cast<uint64_t>(ref.kind)), part_.hash.add(static_cast<uint64_t>(ref.index));
    }
  }

  bool regions() {
    for (size_t i = mark_.regions; i < trace_.regions.size(); i++) {
      Region region = trace_.regions[i];
      Storage* storage = trace_.storages[region.storage].get();
      const auto known = numbers_.find(storage);
      const bool is_given = known != numbers_.end() && part_.locals[known->second].given >= 0;
      // One that was there before, or that got bytes in another way than by a node.
      if (!is_given && (static_cast<size_t>(region.storage) < mark_.storages || storage->buffer != nullptr)) return false;
      region.storage = local(storage, -1), region.shape -= mark_.ints;
      part_.locals[region.storage].is_used = true;
      kept_.regions.push_back(region);
      part_.hash.add(static_cast<uint64_t>(region.storage)), part_.hash.add(static_cast<uint64_t>(region.offset));
      part_.hash.add(static_cast<uint64_t>(region.dtype));
    }
    return true;
  }

  bool nodes() {
    for (size_t n = mark_.nodes; n < trace_.nodes.size(); n++) {
      Node node = trace_.nodes[n];
      if (node.op->refuses || node.op->dynamic) return false;
      part_.hash.add(node.hash.a), part_.hash.add(node.hash.b);
      if (node.op->random && !draw(node)) return false;
      for (uint32_t* position : {&node.args, &node.outs, &node.writes, &node.end}) *position -= mark_.refs;
      for (uint32_t r = node.outs; r < node.end; r++)
        if (kept_.refs[r].kind == ArgRef::Kind::Region) part_.locals[kept_.regions[kept_.refs[r].index].storage].is_written = true;
      kept_.nodes.push_back(node);
    }
    for (size_t n = kept_.nodes.size(); n-- > 0;) checks(kept_.nodes[n]);
    return true;
  }

  // Indices and other values that were looked at, and what they were computed from.
  void checks(const Node& node) {
    auto local = [&](uint32_t r) -> TracePart::Local* {
      return kept_.refs[r].kind == ArgRef::Kind::Region ? &part_.locals[kept_.regions[kept_.refs[r].index].storage] : nullptr;
    };
    bool is_checked = !node.op->indices.empty() || node.op->check != nullptr;
    for (uint32_t r = node.outs; r < node.end; r++) is_checked = is_checked || (local(r) != nullptr && local(r)->is_checked);
    for (uint32_t r = node.args; is_checked && r < node.outs; r++)
      if (local(r) != nullptr) local(r)->is_checked = true;
  }

  // Only what comes from the device's own generator, with nothing else taken in between.
  bool draw(const Node& node) {
    const ArgRef& seed = trace_.refs[node.outs - 2];
    const int64_t count = drawn_by(trace_, node);
    if (trace_.numbers[seed.index].i != random_.seed || trace_.numbers[seed.index + 1].i != random_.offset) return false;
    random_.offset += count;
    part_.draws.push_back({seed.index - mark_.numbers, count});
    kept_.numbers[part_.draws.back().number].i = kept_.numbers[part_.draws.back().number + 1].i = 0;
    return true;
  }

  const Mark& mark_;
  const Trace& trace_;
  std::unordered_map<Storage*, int>& numbers_;
  RandomSlice random_;
  TracePart part_;
  Trace& kept_ = part_.nodes;
};

}  // namespace

Mark::Mark(const Trace& trace)
    : serial(trace.serial),
      looks(tiny::looks),
      nodes(trace.nodes.size()),
      refs(trace.refs.size()),
      regions(trace.regions.size()),
      ints(trace.ints.size()),
      numbers(trace.numbers.size()),
      values(trace.values.size()),
      storages(trace.storages.size()),
      bytes(trace.bytes),
      random(random_state(trace.device)) {}

std::optional<TracePart> TracePart::since(const Mark& mark, const Trace& trace, c10::ArrayRef<Storage*> given,
                                          std::unordered_map<Storage*, int>& numbers) {
  return Taking(mark, trace, numbers).run(given);
}

void TracePart::append_to(Trace& trace, std::vector<StoragePtr>& storages, bool is_known) const {
  for (size_t s = 0; s < storages.size(); s++) {
    if (storages[s] || !locals[s].is_used) continue;
    storages[s] = c10::make_intrusive<Storage>(trace.device, locals[s].nbytes);
    storages[s]->live = false;
  }
  const auto first_ref = static_cast<uint32_t>(trace.refs.size()), first_region = static_cast<uint32_t>(trace.regions.size());
  const auto first_int = static_cast<uint32_t>(trace.ints.size()), first_number = static_cast<uint32_t>(trace.numbers.size());
  const auto first_value = static_cast<uint32_t>(trace.values.size());
  trace.ints.insert(trace.ints.end(), nodes.ints.begin(), nodes.ints.end());
  trace.numbers.insert(trace.numbers.end(), nodes.numbers.begin(), nodes.numbers.end());
  trace.values.insert(trace.values.end(), nodes.values.begin(), nodes.values.end());
  for (const Draw& draw : draws) {
    const RandomSlice slice = take_random(std::nullopt, trace.device, draw.count);
    trace.numbers[first_number + draw.number].i = slice.seed;
    trace.numbers[first_number + draw.number + 1].i = slice.offset;
  }
  for (ArgRef ref : nodes.refs) {
    if (ref.kind == ArgRef::Kind::Region) ref.index += first_region;
    if (ref.kind == ArgRef::Kind::Number) ref.index += first_number;
    if (ref.kind == ArgRef::Kind::Value) ref.index += first_value;
    trace.refs.push_back(ref);
  }
  for (Node node : nodes.nodes) {
    for (uint32_t r = node.args; r < node.writes; r++) {
      if (nodes.refs[r].kind != ArgRef::Kind::Region) continue;
      Region region = nodes.regions[nodes.refs[r].index];
      region.storage = trace.number_of(storages[region.storage].get()), region.shape += first_int;
      trace.key.add(static_cast<uint64_t>(region.storage));
      trace.regions.push_back(region);
    }
    trace.key.add(node.hash.a);
    trace.key.add(node.hash.b);
    for (uint32_t* position : {&node.args, &node.outs, &node.writes, &node.end}) *position += first_ref;
    trace.nodes.push_back(node);
  }
  trace.bytes += nodes.bytes;
  for (size_t s = 0; s < storages.size(); s++)
    if (locals[s].is_written)
      storages[s]->written_in = trace.serial, storages[s]->contents = is_known ? locals[s].contents : Contents::unknown();
  stats().nodes += static_cast<int64_t>(nodes.nodes.size());
}

bool are_apart(std::vector<Storage*> storages) {
  std::sort(storages.begin(), storages.end());
  return std::adjacent_find(storages.begin(), storages.end(), [](Storage* a, Storage* b) { return a == b && a != nullptr; }) ==
         storages.end();
}

}  // namespace tiny
