// Clients that speak HTTP/2 on their own terms: what no library would send.
#include <gtest/gtest.h>
#include <poll.h>

#include <fstream>
#include <map>

#include "tests/service/grpc_client.h"
#include "tests/service/peers.h"
#include "tests/service/rpc_server.h"

using shd_test::Channel;
using shd_test::eventually;
using shd_test::raw_connect;
using shd_test::Server;

namespace
{

// RFC 9113: frames over a raw socket; keeps the windows that the server grants.
class Http2
{
  public:
    enum { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kWindow = 8 };

    // `window`: bytes of each answer that the server may send; -1: as the protocol has it.
    explicit Http2(const std::string &path, int window = -1) : fd_(raw_connect(path))
    {
        send_bytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        send_frame(kSettings, 0, 0, window < 0 ? "" : window_setting(window));
        read_frames(200);
    }
    ~Http2()
    {
        close(fd_);
    }

    void open_stream(uint32_t id, const std::string &method, size_t claimed)
    {
        std::string block;
        for (const auto &h : {std::make_pair(":method", "POST"), std::make_pair(":scheme", "http"),
                              std::make_pair(":path", method.c_str()),
                              std::make_pair(":authority", "x"), std::make_pair("te", "trailers"),
                              std::make_pair("content-type", "application/grpc")}) {
            block += '\0'; // RFC 7541 6.2.2: a literal without indexing, a new name
            block += static_cast<char>(strlen(h.first));
            block += h.first;
            block += static_cast<char>(strlen(h.second));
            block += h.second;
        }
        send_frame(kHeaders, 4, id, block);
        std::string prefix(1, '\0'); // not compressed, the length
        for (int shift = 24; shift >= 0; shift -= 8) {
            prefix += static_cast<char>(claimed >> shift);
        }
        windows_[id] = initial_;
        send_data(id, prefix);
    }
    // A whole request, of no more than the windows take.
    void unary(uint32_t id, const std::string &method, const ProtobufCMessage *message)
    {
        std::string bytes(protobuf_c_message_get_packed_size(message), '\0');
        protobuf_c_message_pack(message, reinterpret_cast<uint8_t *>(&bytes[0]));
        open_stream(id, method, bytes.size());
        for (size_t at = 0; at < bytes.size(); at += 16384) {
            send_data(id, bytes.substr(at, 16384));
        }
        send_frame(kData, 1, id, "");
    }
    void set_window(int window)
    {
        send_frame(kSettings, 0, 0, window_setting(window));
    }
    // As much of `size` zero bytes as the windows allow; what it sent.
    size_t send_data(uint32_t id, size_t size)
    {
        const long room = std::min({windows_[0], windows_[id], 16384L, static_cast<long>(size)});
        if (room <= 0 || dead) {
            return 0;
        }
        send_data(id, std::string(static_cast<size_t>(room), '\0'));
        return static_cast<size_t>(room);
    }
    // Reads what is there, waiting up to ms for something.
    void read_frames(int ms)
    {
        pollfd p = {fd_, POLLIN, 0};
        while (!dead && poll(&p, 1, ms) == 1) {
            char bytes[65536];
            const ssize_t n = recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
            if (n <= 0) {
                dead = true;
                return;
            }
            buffer_.append(bytes, static_cast<size_t>(n));
            parse();
            ms = 0;
        }
    }

    int resets = 0;
    int ended = 0; // streams that the server has ended
    bool dead = false;

  private:
    static std::string window_setting(int window)
    {
        std::string s("\0\4", 2); // RFC 9113 6.5.2: SETTINGS_INITIAL_WINDOW_SIZE
        for (int shift = 24; shift >= 0; shift -= 8) {
            s += static_cast<char>(window >> shift);
        }
        return s;
    }
    static uint32_t number(const std::string &s, size_t at, int bytes)
    {
        uint32_t v = 0;
        for (int i = 0; i < bytes; i++) {
            v = v << 8 | static_cast<unsigned char>(s[at + static_cast<size_t>(i)]);
        }
        return v;
    }
    void parse()
    {
        while (buffer_.size() >= 9) {
            const size_t size = number(buffer_, 0, 3);
            if (buffer_.size() < 9 + size) {
                return;
            }
            const int type = buffer_[3], flags = buffer_[4];
            const uint32_t id = number(buffer_, 5, 4);
            const std::string body = buffer_.substr(9, size);
            buffer_.erase(0, 9 + size);
            if (type == kHeaders && (flags & 1) != 0) {
                ended++;
            }
            if (type == kWindow) {
                windows_[id] += number(body, 0, 4);
            } else if (type == kReset) {
                resets++;
            } else if (type == kSettings && (flags & 1) == 0) {
                for (size_t i = 0; i + 6 <= size; i += 6) {
                    if (number(body, i, 2) == 4) {
                        initial_ = number(body, i + 2, 4);
                    }
                }
                send_frame(kSettings, 1, 0, "");
            } else if (type == kPing && (flags & 1) == 0) {
                send_frame(kPing, 1, 0, body);
            }
        }
    }
    void send_data(uint32_t id, const std::string &bytes)
    {
        windows_[0] -= static_cast<long>(bytes.size());
        windows_[id] -= static_cast<long>(bytes.size());
        send_frame(kData, 0, id, bytes);
    }
    void send_frame(int type, int flags, uint32_t id, const std::string &body)
    {
        std::string head;
        for (int shift = 16; shift >= 0; shift -= 8) {
            head += static_cast<char>(body.size() >> shift);
        }
        head += static_cast<char>(type);
        head += static_cast<char>(flags);
        for (int shift = 24; shift >= 0; shift -= 8) {
            head += static_cast<char>(id >> shift);
        }
        send_bytes(head + body);
    }
    void send_bytes(const std::string &bytes)
    {
        if (send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(bytes.size())) {
            dead = true;
        }
    }

    int fd_;
    std::string buffer_;
    long initial_ = 65535;
    std::map<uint32_t, long> windows_{{0, 65535}};
};

// Many requests that are all but complete: nobody gets more memory for them than the limit.
TEST(Hostile, RequestsThatNeverEndAreBounded)
{
    constexpr size_t kMessage = 4 << 20;
    shd_rpc_limits limits = Server::default_limits();
    limits.max_message = kMessage;
    limits.max_calls = 64;
    limits.max_connections = 16; // a quota of 16 + 4 MiB
    Server server(limits);
    Http2 client(server.path);
    size_t sent[64] = {}, total = 0;
    for (uint32_t i = 0; i < 64; i++) {
        client.open_stream(2 * i + 1, "/t/Echo", kMessage);
    }
    for (int idle = 0; idle < 20 && client.resets == 0 && !client.dead;) {
        size_t round = 0;
        for (uint32_t i = 0; i < 64; i++) {
            const size_t n = client.send_data(2 * i + 1, kMessage - 1000 - sent[i]);
            sent[i] += n;
            round += n;
        }
        total += round;
        client.read_frames(round > 0 ? 0 : 50);
        idle = round > 0 ? 0 : idle + 1;
    }
    EXPECT_LT(total, 64u << 20) << "64 requests of 4 MiB would be 256 MiB";
    EXPECT_GT(total, kMessage) << "the attack did not reach the server";
    Channel honest(server.path);
    Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
    EXPECT_EQ(honest.call("/t/Echo", &ref.base).status, GRPC_STATUS_OK);
}

// Many large answers that the client does not take: only so many are made.
TEST(Hostile, AnswersThatNobodyReadsAreBounded)
{
    shd_rpc_limits limits = Server::default_limits();
    limits.max_message = 64 * 1024;
    Server server(limits);
    std::string large(40000, 'x');
    Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
    ref.job = &large[0];
    {
        Http2 a(server.path, 0), b(server.path, 0);
        for (Http2 *client : {&a, &b}) {
            for (uint32_t i = 0; i < 4; i++) {
                client->unary(2 * i + 1, "/t/Echo", &ref.base);
                client->read_frames(100);
            }
            const int refused = client == &a ? 1 : 4; // three are within twice 64 KiB
            EXPECT_TRUE(eventually([&] {
                client->read_frames(10);
                return client->ended == refused;
            })) << client->ended;
        }
        Channel honest(server.path);
        const auto refused = honest.call("/t/Echo", &ref.base);
        EXPECT_EQ(refused.status, GRPC_STATUS_RESOURCE_EXHAUSTED);
        EXPECT_NE(refused.message.find("answers of 1200"), std::string::npos) << refused.message;
        Shard__V1__JobRef small = SHARD__V1__JOB_REF__INIT;
        EXPECT_EQ(honest.call("/t/Echo", &small.base).status, GRPC_STATUS_OK);
        a.set_window(1 << 20); // 65,535 bytes of the connection's window: one answer
        EXPECT_TRUE(eventually([&] {
            a.read_frames(10);
            return a.ended == 2;
        }));
        EXPECT_TRUE(
            eventually([&] { return honest.call("/t/Echo", &ref.base).status == GRPC_STATUS_OK; }));
    }
    Channel honest(server.path);
    for (int i = 0; i < 8; i++) { // all has been given back
        EXPECT_TRUE(
            eventually([&] { return honest.call("/t/Echo", &ref.base).status == GRPC_STATUS_OK; }));
    }
}

// Many streams that nobody reads: each may have its buffer, all of a user's together may not.
TEST(Hostile, StreamsThatNobodyReadsAreBounded)
{
    shd_rpc_limits limits = Server::default_limits();
    limits.max_message = 256 * 1024;
    limits.max_calls = 16;
    Server server(limits); // 64 KiB for a stream
    std::string args = "1000 1000";
    Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
    ref.job = &args[0];
    {
        Http2 a(server.path, 0), b(server.path, 0);
        for (Http2 *client : {&a, &b}) {
            for (uint32_t i = 0; i < 16; i++) {
                client->unary(2 * i + 1, "/t/Stream", &ref.base);
            }
        }
        // 256 KiB and the messages that reached the small buffers: not 32 times 64 KiB.
        EXPECT_TRUE(eventually([&] { return server.streamed > 250; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        EXPECT_LT(server.streamed, 600);
    }
    EXPECT_TRUE(eventually([&] { return server.gone == 32; }));
    Channel honest(server.path);
    const auto call = honest.start("/t/Stream", &ref.base);
    std::string bytes;
    int n = 0;
    while (call->read(&bytes)) {
        n++;
    }
    EXPECT_EQ(call->finish(), GRPC_STATUS_OK);
    EXPECT_EQ(n, 1000);
}

// The frames of a slow attacker: a request that stands still holds up nobody else.
TEST(Hostile, ARequestThatStandsStillHoldsUpNobody)
{
    Server server;
    Http2 client(server.path);
    client.open_stream(1, "/t/Echo", 1000);
    Channel honest(server.path);
    Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
    for (int i = 0; i < 20; i++) {
        ASSERT_EQ(honest.call("/t/Echo", &ref.base).status, GRPC_STATUS_OK);
    }
    client.read_frames(100);
    EXPECT_FALSE(client.dead);
}

} // namespace
