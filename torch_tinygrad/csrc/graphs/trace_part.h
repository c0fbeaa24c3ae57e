// A stretch of a trace, taken out so that it can be appended again with other storages.
#pragma once

#include <optional>
#include <unordered_map>

#include "device/device.h"
#include "record/trace.h"

namespace tiny {

// Where a trace ended.
struct Mark {
  uint64_t serial, looks;
  size_t nodes, refs, regions, ints, numbers, values, storages;
  int64_t bytes;
  RandomSlice random;

  explicit Mark(const Trace& trace);
};

struct TracePart {
  struct Local {
    int given;  // the number of the storage that is given, or -1: the part makes it
    size_t nbytes;
    bool is_used = false, is_written = false;
    bool is_checked = false;  // what is known of its values decided whether a node was recorded at all
    Contents contents;        // afterwards
  };
  // Random numbers that a node takes, in order: where the seed stands, and the offset behind it.
  struct Draw {
    size_t number;
    int64_t count;
  };

  Trace nodes;  // with storages numbered as in `locals`
  std::vector<Local> locals;
  std::vector<Draw> draws;
  Hash hash;  // of all that it does

  // What was recorded since the mark: none if it is not all that happened since, or if it touches a storage that was there
  // before and is not given. Those given are apart from each other; some may be null. `numbers` gets the locals.
  static std::optional<TracePart> since(const Mark& mark, const Trace& trace, c10::ArrayRef<Storage*> given,
                                        std::unordered_map<Storage*, int>& numbers);

  // As recording it over these storages would, those that are null made anew; they are null no more afterwards. `is_known`:
  // no less is known of those that are given than there was.
  void append_to(Trace& trace, std::vector<StoragePtr>& storages, bool is_known = true) const;
};

// Whether no two are the same; null stands for none.
bool are_apart(std::vector<Storage*> storages);

}  // namespace tiny
