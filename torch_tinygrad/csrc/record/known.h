// What has been found out about calls, by their structure.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "record/hash.h"

namespace tiny {

// Bounded: it begins anew when it is full.
template <class T>
class Known {
 public:
  using Value = std::shared_ptr<const T>;
  std::optional<Value> find(const Hash& structure) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto it = known_.find(structure);
    if (it == known_.end()) return std::nullopt;
    return it->second;
  }
  void add(const Hash& structure, Value value) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (known_.size() > 100000) known_.clear();
    known_.emplace(structure, std::move(value));
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Hash, Value, HashHash> known_;
};

}  // namespace tiny
