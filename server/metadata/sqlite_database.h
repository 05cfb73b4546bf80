#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

#include "server/metadata/meta_history.h"
#include "server/metadata/meta_store.h"
#include "server/metadata/sqlite_files.h"

namespace ffrecord::server {

// The map of a MetaStore in one SQLite file, with its revision, without the keys of leases: they
// end with the process. Every commit that succeeded is on stable storage. Thread-bound: calls block
// on the disk. Fails with kCorruption if the file is damaged, with kIo (ENOSPC: the disk is full).
//
// A change also fails with kIo (ESTALE) once the file or its log was removed, replaced or written
// to by another program: it would not be found at the next start. The database is then put into a
// file beside it, whole, and the error tells what to do.
class SqliteDatabase {
 public:
  // Makes the file if it is missing. Fails also with kCorruption if the file is not ours, with
  // kConflict if another process holds it.
  static Result<std::unique_ptr<SqliteDatabase>> Open(const std::filesystem::path& path);

  Result<std::uint64_t> Revision();
  Result<MetaHistory::Entries> ReadAll();

  // Puts and deletes at `revision`, the next, all or nothing. Which of them is not known after an
  // error in the last step, when the log is written: then `is_unknown` is set, and Settle() must
  // succeed before anything else is asked for. It never does if the files were away at that step.
  Result<void> Change(const std::vector<MetaStore::Put>& puts,
                      const std::vector<std::string>& deletes, std::uint64_t revision,
                      bool& is_unknown);
  // Makes sure that a change whose outcome is unknown was not made, and never will be: what it has
  // left in the log is overwritten by a commit that changes nothing.
  Result<void> Settle();

 private:
  struct CloseDatabase {
    void operator()(sqlite3* database) const noexcept { sqlite3_close_v2(database); }
  };
  struct FinalizeStatement {
    void operator()(sqlite3_stmt* statement) const noexcept { sqlite3_finalize(statement); }
  };
  using Database = std::unique_ptr<sqlite3, CloseDatabase>;
  using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

  SqliteDatabase(Database database, std::filesystem::path path)
      : path_(std::move(path)), database_(std::move(database)) {}

  Error Failed(std::string_view tried) const;
  Result<void> Run(const char* sql);
  Result<Statement> Prepare(const char* sql);
  Result<void> PrepareAll();
  Result<std::uint64_t> PragmaNumber(const char* sql);
  Result<void> SetUp();
  Result<void> CheckDamage();
  Result<void> SyncWhatIsThere();
  Result<void> SyncFile(int which);
  Result<void> NoteFiles();
  Result<void> InTransaction(const std::function<Result<void>()>& change, bool& is_unknown);
  Result<void> ChangeInTransaction(const std::vector<MetaStore::Put>& puts,
                                   const std::vector<std::string>& deletes, std::uint64_t revision);
  Result<void> Step(sqlite3_stmt& statement, const char* tried);
  Error Astray(const Error& why);
  Result<std::filesystem::path> Rescue();

  const std::filesystem::path path_;
  Database database_;                             // Before the statements, which go first.
  std::optional<SqliteFiles> files_;              // Once they are open.
  std::optional<std::filesystem::path> rescued_;  // Where what it holds was put.
  // A change was made while the files were away: only the next start tells whether it is there.
  std::optional<Error> unfound_;
  Statement put_, delete_, revision_, count_;
};

}  // namespace ffrecord::server
