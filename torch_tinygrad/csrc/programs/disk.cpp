// A file a program: its bytes, checked against a hash of themselves.
#include "programs/disk.h"

#include <cstring>
#include <optional>

#include "programs/cache_folder.h"
#include "programs/compile.h"
#include "programs/plain_data.h"

namespace tiny {
namespace {

const std::string kMagic = std::string(kProgramBegins) + "5\n";
const std::string kNote = std::string(kProgramBegins) + "has a note:\n";
constexpr size_t kSavesBetweenChecks = 64;

struct Cache {
  std::string folder;
  Hash digest;
  int64_t bound = 0;
  size_t saves = 0;
};
Cache& cache() {
  static Cache the_cache;
  return the_cache;
}

std::string path_of(Hash key) {
  key.add(cache().digest.a), key.add(cache().digest.b);
  return program_path(cache().folder, key);
}

// Before the program's own bytes: their checksum, and what the program was compiled for.
struct Head {
  Hash payload, constants;
};

Hash checksum(std::string_view bytes) {
  Hash hash;
  hash.add(bytes);
  return hash;
}

}  // namespace

void set_disk_cache(const std::string& folder, const std::string& digest, int64_t bound) { cache() = {folder, checksum(digest), bound, 0}; }

namespace {

// What is kept under a key: what it was made for, and the bytes.
std::optional<std::pair<Hash, std::string>> load_checked(const Hash& key) {
  if (cache().folder.empty() || !is_private(cache().folder)) return std::nullopt;
  const auto bytes = file_contents(path_of(key));
  if (!bytes || bytes->size() < kMagic.size() + sizeof(Head) || bytes->compare(0, kMagic.size(), kMagic) != 0) return std::nullopt;
  Head head;
  std::memcpy(&head, bytes->data() + kMagic.size(), sizeof(Head));
  std::string payload = bytes->substr(kMagic.size() + sizeof(Head));
  if (!(checksum(payload) == head.payload)) return std::nullopt;
  return std::make_pair(head.constants, std::move(payload));
}

void save_checked(const Hash& key, const Hash& constants, std::string_view payload) {
  if (cache().folder.empty() || !prepare_folder(cache().folder)) return;
  const Head head{checksum(payload), constants};
  std::string bytes = kMagic;
  bytes.append(reinterpret_cast<const char*>(&head), sizeof(Head));
  bytes.append(payload);
  put_file(path_of(key), bytes);
  if (cache().saves++ % kSavesBetweenChecks == 0) make_room(cache().folder, cache().bound);
}

}  // namespace

std::shared_ptr<Program> load_program(const Hash& key, c10::DeviceIndex device) {
  const auto kept = load_checked(key);
  if (!kept) return nullptr;
  try {
    Reader r(kept->second);
    auto origins = r.numbers<int64_t>();
    const std::shared_ptr<Program> program = program_from_bytes(r.view(), device);
    if (program != nullptr) program->constants = kept->first, program->origins = std::move(origins);
    return program;
  } catch (const Damaged&) {
    return nullptr;
  }
}

void save_program(const Hash& key, const Program& program) {
  if (cache().folder.empty()) return;
  const std::optional<std::string> bytes = program.to_bytes();
  if (!bytes) return;
  Writer w;
  w.numbers(program.origins), w.text(*bytes);
  save_checked(key, program.constants, w.bytes);
}

std::optional<std::string> load_bytes(const Hash& key) {
  auto kept = load_checked(key);
  return kept ? std::optional(std::move(kept->second)) : std::nullopt;
}

void save_bytes(const Hash& key, std::string_view payload) { save_checked(key, Hash(), payload); }

std::optional<std::string> load_note(const Hash& key) {
  if (cache().folder.empty() || !is_private(cache().folder)) return std::nullopt;
  const auto bytes = file_contents(path_of(key));
  if (!bytes || bytes->compare(0, kNote.size(), kNote) != 0) return std::nullopt;
  return bytes->substr(kNote.size());
}

void save_note(const Hash& key, const std::string& text) {
  if (cache().folder.empty() || !prepare_folder(cache().folder)) return;
  put_file(path_of(key), kNote + text);
}

}  // namespace tiny
