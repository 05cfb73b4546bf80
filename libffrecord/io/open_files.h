#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/io/file.h"

namespace ffrecord {

// A list of sealed files for reading. Only as many are open at a time as the process's limit of
// descriptors allows; if all fit, all stay open. A file that was closed is opened again by its name
// when it is next needed, and must then be the same file: same device, inode, birth time and size.
// (Checksums verify its bytes, as for a file that stays open.)
//
// Files are counted from 0 in list order. Thread-safe without a mutex: a mutex that one thread
// holds while another forks would stay locked in the child. Parent and child may both go on using
// it; each then opens and closes for itself.
class OpenFiles {
 public:
  enum class Way : std::uint8_t { kBuffered = 0, kDirect = 1 };

  // A descriptor that stays open while this lives. Borrows the OpenFiles. Move-only.
  class Pin {
   public:
    Pin(Pin&& other) noexcept : word_(other.word_), fd_(other.fd_) { other.word_ = nullptr; }
    Pin& operator=(Pin&& other) noexcept {
      std::swap(word_, other.word_);
      std::swap(fd_, other.fd_);
      return *this;
    }
    ~Pin();
    int fd() const noexcept { return fd_; }

   private:
    friend class OpenFiles;
    Pin(std::atomic<std::uint64_t>* word, int fd) noexcept : word_(word), fd_(fd) {}
    std::atomic<std::uint64_t>* word_;  // None if the file is never closed.
    int fd_;
  };

  // Opens each of `paths` once. `direct_too`: they may be opened directly. Fails as OpenReadOnly.
  static Result<std::unique_ptr<OpenFiles>> Open(std::span<const std::filesystem::path> paths,
                                                 bool direct_too);
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;
  ~OpenFiles();

  std::size_t count() const noexcept { return files_.size(); }
  const std::string& name(std::uint32_t file) const noexcept { return files_[file].path.native(); }
  std::uint64_t size_bytes(std::uint32_t file) const noexcept { return files_[file].size_bytes; }

  // Whether the file has another size now, or cannot be opened any more.
  bool HasChanged(std::uint32_t file) const;
  // Whether it is smaller, or cannot be opened any more.
  bool HasShrunk(std::uint32_t file) const;

  // Opens all files for direct I/O too. direct_alignment_bytes() then tells the alignment of each;
  // 0 where the file system refuses or needs blocks larger than `alignment_max_bytes`. For set-up:
  // call nothing else meanwhile.
  Result<void> OpenDirectly(std::uint32_t alignment_max_bytes);
  // The alignment of direct reads; 0 if there are none.
  std::uint32_t direct_alignment_bytes(std::uint32_t file) const noexcept {
    return files_[file].direct_alignment_bytes;
  }

  // The file's descriptor. kDirect only if there is a direct alignment. Fails with kCorruption if
  // another file has taken the name, with the error of open otherwise, and with kIo (EMFILE) if
  // there is no free descriptor and none can be closed because all are pinned.
  Result<Pin> Take(std::uint32_t file, Way way) const;

  // How many descriptors one thread should pin at a time, to leave some for other threads; at least
  // 1.
  std::size_t pin_count_max() const noexcept { return pin_count_max_; }

  // Descriptors that are open now, about.
  std::size_t open_count() const noexcept;

 private:
  struct File {
    std::filesystem::path path;      // As it was given, for messages.
    std::filesystem::path absolute;  // The working directory may change.
    std::uint64_t size_bytes = 0;
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::int64_t birth_ns = 0;
    std::uint32_t direct_alignment_bytes = 0;
  };
  struct Slots;

  OpenFiles(std::size_t file_count, bool direct_too);
  Slots& SlotsOfThisProcess() const;
  std::size_t SlotOf(std::uint32_t file, Way way) const noexcept {
    return file * ways_ + static_cast<std::size_t>(way);
  }
  void Divide(std::size_t wanted);
  void Keep(std::size_t slot, UniqueFd fd);
  Result<void> Add(const std::filesystem::path& path);
  // Now; none if it cannot be opened any more.
  std::optional<std::uint64_t> SizeNow(std::uint32_t file) const;
  Result<UniqueFd> OpenAgain(const File& file, Way way) const;

  std::vector<File> files_;
  const std::size_t ways_;
  std::uint64_t room_;  // For descriptors, all in all.
  bool closes_ = false;
  std::size_t capacity_ = 0;  // Limit of descriptors; enough for all if none is ever closed.
  std::size_t pin_count_max_ = 0;
  mutable std::atomic<Slots*> slots_;
};

}  // namespace ffrecord
