#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::server {

// The files of an open SQLite database: the database itself, and its log.
//
// SQLite keeps them open, and goes on writing to them after they were removed or replaced, or while
// another program writes to them: what it commits then is not there at the next start.
class SqliteFiles {
 public:
  // They are open. A log that is not there is none (a file system without it), and is not missed.
  explicit SqliteFiles(const std::filesystem::path& path);

  // This process has written to them, and nobody else since the last call.
  void Note();
  // Both fail with kIo (ESTALE), naming the file, if it is not at its path any more.
  Result<void> CheckInPlace() const;
  // Fails as well if somebody else has written to one of them since Note().
  Result<void> CheckUntouched() const;

 private:
  struct File {
    std::filesystem::path path;
    struct stat noted {};
  };

  const bool compares_times_;  // The times of the last write, beside the sizes.
  std::vector<File> files_;    // Files that are missed if they are not there.
};

}  // namespace ffrecord::server
