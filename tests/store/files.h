// Files made on the spot: safetensors from a header given as text, and a directory of named files.
#ifndef SHD_TESTS_STORE_FILES_H
#define SHD_TESTS_STORE_FILES_H

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace files
{

inline std::string Length(uint64_t n)
{
    std::string bytes;
    for (int i = 0; i < 8; i++) {
        bytes.push_back(static_cast<char>(n >> 8 * i));
    }
    return bytes;
}

// A safetensors file of this header and `data` bytes that count up.
inline std::string Safetensors(const std::string &header, size_t data)
{
    std::string file = Length(header.size()) + header;
    for (size_t i = 0; i < data; i++) {
        file.push_back(static_cast<char>(i));
    }
    return file;
}

// An open file with these bytes and no name.
inline int Anonymous(const std::string &bytes)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return fd;
}

inline void Write(const std::string &path, const std::string &bytes)
{
    std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string Read(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A directory that goes with the object.
class Directory
{
  public:
    // In /tmp, not in the test's own directory: that one may lie beneath a home that no other
    // user can pass, and these tests become other users.
    Directory()
    {
        std::string name = "/tmp/shd-XXXXXX";
        EXPECT_NE(mkdtemp(name.data()), nullptr);
        path_ = name;
    }
    ~Directory()
    {
        std::filesystem::remove_all(path_);
    }
    Directory(const Directory &) = delete;
    Directory &operator=(const Directory &) = delete;

    const std::string &path() const
    {
        return path_;
    }
    std::string operator/(const std::string &name) const
    {
        return path_ + "/" + name;
    }

  private:
    std::string path_;
};

} // namespace files

#endif
