#include "sizes/size_families.h"

#include <algorithm>
#include <unordered_map>

namespace tiny {
namespace {

// Traces of a structure that are remembered, and bytes of all of them.
constexpr size_t kMaxSeen = 12, kMaxBytes = size_t{16} << 20;
// Programs of a structure, and structures with programs.
constexpr size_t kMaxPrograms = 4, kMaxFamilies = 256;

auto& families = *new std::unordered_map<Hash, SizeFamily, HashHash>;  // never destroyed, as programs are not
size_t seen_bytes = 0;
uint64_t uses = 0;

size_t bytes_of(const SizeFamily& family) {
  size_t bytes = sizeof(SizeFamily);
  for (const auto& values : family.seen) bytes += values.size() * sizeof(int64_t);
  return bytes;
}

}  // namespace

SizeFamily& size_family_of(const Hash& structure) {
  SizeFamily& family = families[structure];
  family.last_use = ++uses;
  return family;
}

bool note_sizes(SizeFamily& family, Integers integers) {
  auto& known = family.seen_sizes;
  seen_bytes -= std::min(seen_bytes, bytes_of(family));
  // Of equal sizes the first and the last are kept: numbers and offsets may have changed.
  const auto same = std::find(known.begin(), known.end(), integers.sizes);
  const auto again = same == known.end() ? same : std::find(same + 1, known.end(), integers.sizes);
  const auto at = again != known.end() ? again : known.size() == kMaxSeen ? known.begin() : known.end();
  if (at != known.end()) {
    family.seen.erase(family.seen.begin() + (at - known.begin()));
    known.erase(at);
  }
  known.push_back(integers.sizes);
  family.seen.push_back(std::move(integers.values));
  seen_bytes += bytes_of(family);
  const bool is_another = std::any_of(known.begin(), known.end(), [&](const Hash& sizes) { return !(sizes == known.back()); });
  if (seen_bytes <= kMaxBytes) return is_another;
  // Half of what has no program goes, the longest unused first.
  seen_bytes = 0;
  std::vector<uint64_t> ages;
  for (const auto& [hash, other] : families) ages.push_back(other.last_use);
  std::nth_element(ages.begin(), ages.begin() + ages.size() / 2, ages.end());
  const uint64_t oldest = ages[ages.size() / 2];
  for (auto it = families.begin(); it != families.end();) {
    SizeFamily& other = it->second;
    if (&other != &family && other.programs.empty() && !other.request && other.last_use <= oldest) {
      it = families.erase(it);
    } else {
      seen_bytes += bytes_of(other);
      ++it;
    }
  }
  return is_another;
}

void forget_sizes_without_program(SizeFamily& family) {
  seen_bytes -= std::min(seen_bytes, bytes_of(family));
  auto forget = [&](size_t i) {
    family.seen.erase(family.seen.begin() + static_cast<ptrdiff_t>(i));
    family.seen_sizes.erase(family.seen_sizes.begin() + static_cast<ptrdiff_t>(i));
  };
  if (family.programs.empty() && !family.seen.empty()) forget(0);
  for (size_t i = family.programs.empty() ? 0 : family.seen.size(); i > 0; i--)
    if (!family.programs.back()->match(family.seen[i - 1])) forget(i - 1);
  seen_bytes += bytes_of(family);
}

void add_program_for(SizeFamily& family, std::shared_ptr<SizedProgram> program) {
  if (family.programs.size() == kMaxPrograms) family.programs.erase(family.programs.begin());
  family.programs.push_back(std::move(program));
  std::vector<SizeFamily*> with_programs;
  for (auto& [hash, other] : families)
    if (!other.programs.empty()) with_programs.push_back(&other);
  if (with_programs.size() <= kMaxFamilies) return;
  auto older = [](const SizeFamily* a, const SizeFamily* b) { return a->last_use < b->last_use; };
  (*std::min_element(with_programs.begin(), with_programs.end(), older))->programs.clear();
}

void clear_size_families() {
  families.clear();
  seen_bytes = 0;
}

}  // namespace tiny
