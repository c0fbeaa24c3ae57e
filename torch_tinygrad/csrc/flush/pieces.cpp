#include "flush/pieces.h"

#include "device/buffers.h"

namespace tiny {
Uses::Uses(const Trace& trace) : runs(trace.nodes.size()), first(trace.storages.size(), -1), last(trace.storages.size(), -1) {
  std::vector<bool> needed = trace.live;
  for (size_t n = trace.nodes.size(); n-- > 0;) {
    const Node& node = trace.nodes[n];
    bool runs_now = false;
    each_region(trace, node.outs, node.end, [&](const Region& region) { runs_now = runs_now || needed[region.storage]; });
    if (!runs_now) continue;
    runs[n] = true;
    each_region(trace, node.args, node.end, [&](const Region& region) {
      needed[region.storage] = true;
      first[region.storage] = static_cast<int64_t>(n);
      if (last[region.storage] < 0) last[region.storage] = static_cast<int64_t>(n);
    });
  }
}

Trace Pieces::take(size_t end) {
  Trace piece;
  piece.device = whole_.device;
  piece.is_piece = true;
  const uint32_t begin = node_, first_ref = whole_.nodes[begin].args;
  const uint32_t regions = region_, numbers = number_, values = value_;
  const uint32_t ints = regions < whole_.regions.size() ? whole_.regions[regions].shape : 0;
  piece.nodes.reserve(end - begin);
  piece.refs.reserve(whole_.nodes[end - 1].end - first_ref);
  auto storage_of = [&](int32_t storage) {
    auto& [used_in, number] = numbers_[storage];
    if (used_in != begin) {
      used_in = begin, number = static_cast<int32_t>(piece.storages.size());
      piece.storages.push_back(whole_.storages[storage]);
      piece.live.push_back(whole_.live[storage] || uses_.last[storage] >= static_cast<int64_t>(end));
    }
    return number;
  };
  for (; node_ < end; node_++) {
    Node node = whole_.nodes[node_];
    for (uint32_t r = node.args; r < node.end; r++) {
      ArgRef ref = whole_.refs[r];
      switch (ref.kind) {
        case ArgRef::Kind::Region:
          if (r < node.writes) {  // what is changed was an argument already
            Region region = whole_.regions[region_ = ref.index];
            region_++;
            const c10::IntArrayRef shape(whole_.ints.data() + region.shape, size_t{2} * region.ndim);
            piece.ints.insert(piece.ints.end(), shape.begin(), shape.end());
            region.storage = storage_of(region.storage);
            region.shape -= ints;
            piece.regions.push_back(region);
            piece.key.add(static_cast<uint64_t>(region.storage));
          }
          ref.index -= regions;
          break;
        case ArgRef::Kind::Number:
          piece.numbers.push_back(whole_.numbers[ref.index]);
          number_ = ref.index + 1;
          ref.index -= numbers;
          break;
        case ArgRef::Kind::Value:
          piece.values.push_back(whole_.values[ref.index]);
          value_ = ref.index + 1;
          ref.index -= values;
          break;
        default:
          break;
      }
      piece.refs.push_back(ref);
    }
    each_region(whole_, node.outs, node.writes,
                [&](const Region& region) { piece.bytes += static_cast<int64_t>(whole_.storages[region.storage]->nbytes); });
    piece.key.add(node.hash.a);
    piece.key.add(node.hash.b);
    node.args -= first_ref, node.outs -= first_ref, node.writes -= first_ref, node.end -= first_ref;
    piece.nodes.push_back(node);
  }
  return piece;
}

void allocate_filled(const Trace& trace, const Uses& uses) {
  for (size_t s = 0; s < trace.storages.size(); s++) {
    Storage& storage = *trace.storages[s];
    if (storage.buffer != nullptr || uses.first[s] < 0) continue;
    const Node& node = trace.nodes[uses.first[s]];
    bool is_filled = false;
    each_region(trace, node.writes, node.end, [&](const Region& region) {
      int64_t count = static_cast<int64_t>(c10::elementSize(region.dtype));
      for (uint32_t d = 0; d < region.ndim; d++) count *= trace.ints[region.shape + d];
      is_filled = is_filled || (region.storage == static_cast<int32_t>(s) && count < static_cast<int64_t>(storage.nbytes));
    });
    if (is_filled) storage.buffer = host_buffer(storage.device, storage.nbytes);
  }
}

void keep_from(Trace& trace, const Uses& uses, size_t begin) {
  Pieces pieces(trace, uses);
  if (begin > 0) pieces.take(begin);
  Trace rest = pieces.take(trace.nodes.size());
  for (const StoragePtr& storage : trace.storages) storage->index = -1, storage->written_in = 0;
  for (size_t s = 0; s < rest.storages.size(); s++) rest.storages[s]->index = static_cast<int32_t>(s);
  for (const Node& node : rest.nodes)
    each_region(rest, node.outs, node.end, [&](const Region& region) { rest.storages[region.storage]->written_in = trace.serial; });
  rest.serial = trace.serial;
  trace = std::move(rest);
}

}  // namespace tiny
