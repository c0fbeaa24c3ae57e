// Files of the folder that programs are kept in. It may hold files of others, by mistake or on purpose: a marker says that
// it is a cache of ours, and a file is ours by its name and by how it begins.
#include "programs/cache_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

namespace tiny {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNameLength = 32;
constexpr const char* kMarker = "torch-tinygrad-cache";
constexpr std::string_view kMarkerText = "Compiled programs of torch-tinygrad are kept in this folder. It may be deleted at any time.\n";

// Whether this user alone can have written it.
bool is_ours(const struct stat& info) { return info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0; }

// A name of 32 hexadecimal digits; drafts have the number of the process that writes them besides.
bool is_program_name(const std::string& name) {
  auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (name.size() < kNameLength || !std::all_of(name.begin(), name.begin() + kNameLength, is_hex)) return false;
  const std::string_view rest = std::string_view(name).substr(kNameLength);
  return rest.empty() || (rest.size() > 1 && rest[0] == '.' && std::all_of(rest.begin() + 1, rest.end(), is_digit));
}

// Whether we wrote the file: by its name and by how it begins. A draft may have no bytes yet.
bool is_program(const fs::directory_entry& entry) {
  std::error_code gone;
  const std::string name = entry.path().filename().string();
  if (!is_program_name(name) || entry.is_symlink(gone) || !entry.is_regular_file(gone)) return false;
  const int file = open(entry.path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return false;
  char begin[kProgramBegins.size()];
  const ssize_t got = read(file, begin, sizeof(begin));
  close(file);
  const bool is_draft = name.size() > kNameLength;
  return got >= (is_draft ? 0 : static_cast<ssize_t>(sizeof(begin))) && kProgramBegins.substr(0, got) == std::string_view(begin, got);
}

}  // namespace

std::string program_path(const std::string& folder, const Hash& key) {
  char name[kNameLength + 1];
  std::snprintf(name, sizeof(name), "%016llx%016llx", static_cast<unsigned long long>(key.a), static_cast<unsigned long long>(key.b));
  return folder + "/" + name;
}

bool is_private(const std::string& folder) {
  struct stat info;
  return lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && is_ours(info);
}

bool prepare_folder(const std::string& folder) {
  std::error_code ignored;
  if (fs::create_directories(folder, ignored)) fs::permissions(folder, fs::perms::owner_all, ignored);
  if (!is_private(folder)) return false;
  const std::string marker = folder + "/" + kMarker;
  if (fs::exists(fs::symlink_status(marker, ignored))) return true;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    // Another process may be marking the folder just now.
    const std::string name = entry.path().filename().string();
    if (name.rfind(kMarker, 0) == 0 || is_program(entry)) continue;
    TORCH_WARN_ONCE("tiny: compiled programs are not kept, because the folder for them, ", folder, ", holds other files (", name,
                    "). Set TORCH_TINY_CACHE to a folder of its own, or to 0.");
    return false;
  }
  put_file(marker, kMarkerText);
  return true;
}

std::optional<std::string> file_contents(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat info;
  std::optional<std::string> found;
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && is_ours(info)) {
    found.emplace(static_cast<size_t>(info.st_size), '\0');
    size_t got = 0;
    while (got < found->size()) {
      const ssize_t n = read(file, found->data() + got, found->size() - got);
      if (n <= 0) break;
      got += static_cast<size_t>(n);
    }
    if (got == found->size()) {
      futimens(file, nullptr);  // the least recently used goes first
    } else {
      found.reset();
    }
  }
  close(file);
  return found;
}

void put_file(const std::string& path, std::string_view bytes) {
  const std::string draft = path + "." + std::to_string(getpid());
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return;
  size_t put = 0;
  while (put < bytes.size()) {
    const ssize_t n = ::write(file, bytes.data() + put, bytes.size() - put);
    if (n <= 0) break;
    put += static_cast<size_t>(n);
  }
  const bool whole = close(file) == 0 && put == bytes.size();
  if (!whole || rename(draft.c_str(), path.c_str()) != 0) unlink(draft.c_str());
}

void make_room(const std::string& folder, int64_t bound) {
  struct File {
    fs::file_time_type used;
    int64_t size;
    fs::path path;
  };
  std::vector<File> files;
  int64_t total = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!is_program(entry)) continue;
    std::error_code gone;
    const auto used = entry.last_write_time(gone);
    const auto size = static_cast<int64_t>(entry.file_size(gone));
    if (gone) continue;
    files.push_back({used, size, entry.path()});
    total += size;
  }
  if (total <= bound) return;
  std::sort(files.begin(), files.end(), [](const File& x, const File& y) { return x.used < y.used; });
  for (const File& file : files) {
    if (total <= bound - bound / 10) break;  // a tenth is free then
    if (fs::remove(file.path, ignored)) total -= file.size;
  }
}

}  // namespace tiny
