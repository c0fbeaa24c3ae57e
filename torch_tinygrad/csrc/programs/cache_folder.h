// The folder that programs are kept in: which files are ours to read and to remove.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "record/hash.h"

namespace tiny {

// What every file of ours begins with. The version of the format follows.
constexpr std::string_view kProgramBegins = "torch-tinygrad program ";

std::string program_path(const std::string& folder, const Hash& key);

// Whether this user alone can write to the folder.
bool is_private(const std::string& folder);

// Makes and marks the folder if need be. Says whether programs may be kept there: not where others can write, nor among
// files that are not ours, which gives a warning.
bool prepare_folder(const std::string& folder);

// The bytes of a file that this user alone can have written.
std::optional<std::string> file_contents(const std::string& path);

// Readers never see half of what is put.
void put_file(const std::string& path, std::string_view bytes);

// Removes the programs that were used least recently, if all of them pass the bound. Nothing else is touched.
void make_room(const std::string& folder, int64_t bound);

}  // namespace tiny
