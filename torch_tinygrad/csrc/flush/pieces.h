// A trace in pieces: each a trace of its own, which keeps what later pieces or tensors need and nothing else.
#pragma once

#include <vector>

#include "record/trace.h"

namespace tiny {

// What a stretch of references refers to in memory.
template <class F>
void each_region(const Trace& trace, uint32_t begin, uint32_t end, const F& f) {
  for (uint32_t r = begin; r < end; r++)
    if (trace.refs[r].kind == ArgRef::Kind::Region) f(trace.regions[trace.refs[r].index]);
}

// Where the storages of a trace are used, by nodes that somebody's value depends on. Its `live` must have been noted.
struct Uses {
  explicit Uses(const Trace& trace);

  std::vector<bool> runs;            // by node
  std::vector<int64_t> first, last;  // nodes, by storage; -1 where there is none
};

// Hands the pieces of a trace out, from its first node on. What a node has in a trace lies behind what the node before it
// has, so a piece is a stretch of each array, with its storages numbered by first use as the recorder would.
class Pieces {
 public:
  Pieces(const Trace& whole, const Uses& uses) : whole_(whole), uses_(uses), numbers_(whole.storages.size(), {-1, 0}) {}

  // The nodes up to `end`.
  Trace take(size_t end);

 private:
  const Trace& whole_;
  const Uses& uses_;
  uint32_t node_ = 0, region_ = 0, number_ = 0, value_ = 0;  // of the whole, where the next piece begins
  std::vector<std::pair<int64_t, int32_t>> numbers_;         // by storage: where the piece began that uses it last, its number there
};

// Gives a buffer to what is made for steps to fill, part by part: then all of them find one, the first too.
void allocate_filled(const Trace& trace, const Uses& uses);

// Leaves only the nodes from `begin` on pending. The others have run.
void keep_from(Trace& trace, const Uses& uses, size_t begin);

}  // namespace tiny
