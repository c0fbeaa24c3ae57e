// Finds the program for many sizes that a trace is run with: asks for one, takes it up, fills in sizes; and has a size that
// comes often compiled for itself.
#pragma once

#include "flush/policy.h"
#include "programs/programs.h"

namespace tiny {

// A program for many sizes, this trace's among them, as an entry of the trace's family. Two traces of one structure are enough
// to ask for it. `way` says how it was come by, where there is one.
Entry* find_of_many_sizes(Family& family, const Trace& trace, Mode mode, const Inputs& inputs, Way& way);

// A user said that a size of it varies: it is not compiled for the first one.
bool waits_for_another_size(const Family& family, const Trace& trace, Mode mode);

// Where the entry's program is one for many sizes: asks for one of this size alone when it has come often, and takes it up.
void look_for_rival(Entry& entry, const Trace& trace, const Hash& key, const Inputs& inputs);

}  // namespace tiny
