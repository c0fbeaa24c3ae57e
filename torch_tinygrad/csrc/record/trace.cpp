#include "record/trace.h"

namespace tiny {

int32_t Trace::number_of(Storage* storage) {
  if (storage->trace == serial && storage->index >= 0) return storage->index;
  storage->trace = serial;
  storage->index = static_cast<int32_t>(storages.size());
  storages.push_back(StoragePtr::reclaim_copy(storage));
  return storage->index;
}

uint32_t Trace::add_region(const at::Tensor& tensor) {
  Storage* storage = storage_of(tensor.storage().data_ptr());
  Region region;
  region.storage = number_of(storage);
  region.dtype = tensor.scalar_type();
  region.ndim = static_cast<uint32_t>(tensor.dim());
  region.shape = static_cast<uint32_t>(ints.size());
  region.offset = tensor.storage_offset();
  ints.insert(ints.end(), tensor.sizes().begin(), tensor.sizes().end());
  ints.insert(ints.end(), tensor.strides().begin(), tensor.strides().end());
  key.add(static_cast<uint64_t>(region.storage));
  regions.push_back(region);
  return static_cast<uint32_t>(regions.size() - 1);
}

void Trace::note_live() {
  live.resize(storages.size());
  for (size_t s = 0; s < storages.size(); s++) live[s] = storages[s]->live.load(std::memory_order_acquire);
}

void Trace::clear() {
  serial += kMaxDevices;
  nodes.clear(), refs.clear(), regions.clear(), ints.clear(), numbers.clear(), values.clear(), storages.clear(), live.clear();
  key = Hash();
  bytes = 0;
}

}  // namespace tiny
