#include <ffrecord/client/features.h>

#include "libffrecord/net/transport/tls/tls.h"

namespace ffrecord {

std::string WhyNoTls() { return net::WhyTlsIsAbsent(); }

}  // namespace ffrecord
