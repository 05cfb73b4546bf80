#pragma once

// Marks what the installed library shows. Everything else is hidden.
#define FFR_EXPORT __attribute__((visibility("default")))
