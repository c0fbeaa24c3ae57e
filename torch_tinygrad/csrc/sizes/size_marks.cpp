#include "sizes/size_marks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "record/recorder.h"

namespace tiny {
namespace {

// As long as its storage is there.
struct Mark {
  c10::weak_intrusive_ptr<Storage> storage;
  int64_t size;
  bool varies;
};
auto& marks = *new std::vector<Mark>;

}  // namespace

bool is_marked(const Storage* storage, int64_t size, bool varies) {
  return std::any_of(marks.begin(), marks.end(), [&](const Mark& mark) {
    return mark.storage._unsafe_get_target() == storage && mark.size == size && mark.varies == varies && !mark.storage.expired();
  });
}

void mark_size(const at::Tensor& tensor, int64_t dim, bool varies) {
  TORCH_CHECK(tensor.is_privateuseone(), "a size can be marked of tensors on tiny only, not on ", tensor.device());
  const int64_t size = tensor.size(dim);
  DeviceLock lock;
  Storage* storage = storage_of(tensor.storage().data_ptr());
  auto is_over = [&](const Mark& mark) {
    return mark.storage.expired() || (mark.storage._unsafe_get_target() == storage && mark.size == size);
  };
  marks.erase(std::remove_if(marks.begin(), marks.end(), is_over), marks.end());
  marks.push_back({c10::weak_intrusive_ptr<Storage>(StoragePtr::reclaim_copy(storage)), size, varies});
}

bool has_marked_variable(const Trace& trace) {
  if (marks.empty()) return false;
  return std::any_of(trace.regions.begin(), trace.regions.end(), [&](const Region& region) {
    for (uint32_t d = 0; d < region.ndim; d++)
      if (is_marked(trace.storages[region.storage].get(), trace.ints[region.shape + d], true)) return true;
    return false;
  });
}

}  // namespace tiny
