// A thread that wants no help.
#pragma once

#include <omp.h>

namespace tiny {

// While one lives, ATen's loops run on this thread alone. Where others use the cores, a loop with helpers takes until the
// system lets each of them run.
class Alone {
 public:
  Alone() : helpers_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~Alone() { omp_set_num_threads(helpers_); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  const int helpers_;
};

}  // namespace tiny
