// Digests are BLAKE2b's (RFC 7693; the expected ones are Python's hashlib.blake2b).
#include "daemon/data/digest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace
{

std::string Take(shd_digest *digest)
{
    unsigned char bytes[SHD_DIGEST_BYTES];
    shd_digest_take(digest, bytes);
    std::string out;
    for (const unsigned char byte : bytes) {
        char hex[3];
        snprintf(hex, sizeof(hex), "%02x", byte);
        out += hex;
    }
    return out;
}

TEST(Digest, IsBlake2b)
{
    std::vector<unsigned char> key(64), text(1000);
    for (size_t i = 0; i < text.size(); i++) {
        text[i] = static_cast<unsigned char>(i);
    }
    std::copy(text.begin(), text.begin() + 64, key.begin());
    shd_digest *digest = shd_digest_create(key.data(), key.size());
    EXPECT_EQ(Take(digest), "2fa9fbd9be36437de204e139e97d402bce68c828f43391608c891b5faed8a98a");
    // In parts, and after another digest.
    const std::string want = "218c8e20fa50de8a5271b3fa7495d0cfa08f38bea3b54cfe869300a7eac4ece5";
    for (const size_t part : {1000u, 1u, 127u, 128u, 129u}) {
        for (size_t at = 0; at < text.size(); at += part) {
            shd_digest_add(digest, text.data() + at, std::min(part, text.size() - at));
        }
        shd_digest_add(digest, nullptr, 0);
        EXPECT_EQ(Take(digest), want) << part;
    }
    shd_digest_free(digest);
    digest = shd_digest_create("k", 1);
    shd_digest_add(digest, "abc", 3);
    EXPECT_EQ(Take(digest), "12f0b4a482a321476483eac3387d86e810573152916fb35bf7a6b9951f221db3");
    shd_digest_free(digest);
    shd_digest_free(nullptr);
}

TEST(Digest, SizesKeepPartsApart)
{
    shd_digest *digest = shd_digest_create("k", 1);
    shd_digest_add_sized(digest, "ab", 2);
    shd_digest_add_sized(digest, "c", 1);
    const std::string one = Take(digest);
    shd_digest_add_sized(digest, "a", 1);
    shd_digest_add_sized(digest, "bc", 2);
    EXPECT_NE(Take(digest), one);
    shd_digest_free(digest);
}

} // namespace
