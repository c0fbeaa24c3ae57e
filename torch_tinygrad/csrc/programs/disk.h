// Programs kept on disk, so that a second process runs without scheduling or compiling.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "programs/program.h"
#include "record/hash.h"

namespace tiny {

// `digest` says what programs depend on besides their trace: versions, processor, settings. An empty folder: nothing kept.
void set_disk_cache(const std::string& folder, const std::string& digest, int64_t bound);

// The program kept under a key; none where there is no such file, or it is damaged, or another user could have written it.
std::shared_ptr<Program> load_program(const Hash& key, c10::DeviceIndex device);

// Keeps a program, if it can be written down: arguments of unusual types cannot.
void save_program(const Hash& key, const Program& program);

// The same for bytes of any kind.
std::optional<std::string> load_bytes(const Hash& key);
void save_bytes(const Hash& key, std::string_view payload);

// A text in the place of a program: why none could be made, or what else is worth keeping.
std::optional<std::string> load_note(const Hash& key);
void save_note(const Hash& key, const std::string& text);

}  // namespace tiny
