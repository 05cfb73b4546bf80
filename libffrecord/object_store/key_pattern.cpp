#include "libffrecord/object_store/key_pattern.h"

#include <cstddef>
#include <vector>

namespace ffrecord::object_store {
namespace {

constexpr std::string_view kMagic = "*?[";

// One step of a pattern.
struct Token {
  enum class Kind { kOne, kInSegment, kAnything, kFolders } kind;
  std::string_view set;  // For kOne: a character, "?", or the inside of brackets.
  bool is_literal = false;
};

bool IsInSet(std::string_view set, char c) {
  const bool is_negated = set.starts_with('!') || set.starts_with('^');
  if (is_negated) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    const bool is_span = i + 2 < set.size() && set[i + 1] == '-';
    found = found || (is_span ? set[i] <= c && c <= set[i + 2] : set[i] == c);
    if (is_span) i += 2;
  }
  return found != is_negated;
}

std::vector<Token> TokensOf(std::string_view pattern) {
  std::vector<Token> tokens;
  while (!pattern.empty()) {
    std::size_t size = 1;
    if (pattern.starts_with("**/")) {
      tokens.push_back({Token::Kind::kFolders, {}});
      size = 3;
    } else if (pattern.starts_with("**")) {
      tokens.push_back({Token::Kind::kAnything, {}});
      size = 2;
    } else if (pattern.front() == '*') {
      tokens.push_back({Token::Kind::kInSegment, {}});
    } else {
      // A bracket right behind the first is one of the set.
      const std::size_t close = pattern.front() == '[' ? pattern.find(']', 2) : pattern.npos;
      if (close != pattern.npos) {
        tokens.push_back({Token::Kind::kOne, pattern.substr(1, close - 1)});
        size = close + 1;
      } else {
        tokens.push_back({Token::Kind::kOne, pattern.substr(0, 1), pattern.front() != '?'});
      }
    }
    pattern.remove_prefix(size);
  }
  return tokens;
}

bool IsOne(const Token& token, char c) {
  if (token.is_literal) return token.set.front() == c;
  if (c == '/') return false;
  return token.set == "?" || IsInSet(token.set, c);
}

}  // namespace

bool IsPattern(std::string_view key) { return key.find_first_of(kMagic) != std::string_view::npos; }

std::string_view LiteralPrefix(std::string_view pattern) {
  return pattern.substr(0, pattern.find_first_of(kMagic));
}

// Row by row: which beginnings of the key the tokens so far match.
bool Matches(std::string_view pattern, std::string_view key) {
  std::vector<char> reached(key.size() + 1, 0);
  reached[0] = 1;
  for (const Token& token : TokensOf(pattern)) {
    std::vector<char> next(key.size() + 1, 0);
    for (std::size_t i = 0; i <= key.size(); ++i) {
      const bool was_next = i > 0 && next[i - 1] != 0;
      switch (token.kind) {
        case Token::Kind::kOne:
          next[i] = i > 0 && reached[i - 1] != 0 && IsOne(token, key[i - 1]);
          break;
        case Token::Kind::kInSegment:
          next[i] = reached[i] != 0 || (was_next && key[i - 1] != '/');
          break;
        case Token::Kind::kAnything:
          next[i] = reached[i] != 0 || was_next;
          break;
        case Token::Kind::kFolders:
          next[i] = reached[i];
          break;
      }
    }
    if (token.kind == Token::Kind::kFolders) {
      // Also behind every later slash.
      bool has_begun = false;
      for (std::size_t i = 0; i <= key.size(); ++i) {
        if (has_begun && key[i - 1] == '/') next[i] = 1;
        has_begun = has_begun || reached[i] != 0;
      }
    }
    reached = std::move(next);
  }
  return reached[key.size()] != 0;
}

}  // namespace ffrecord::object_store
