// Files of a test in a folder of its own.
#ifndef SHD_TESTS_DATA_DATA_FILES_H
#define SHD_TESTS_DATA_DATA_FILES_H

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

class Folder
{
  public:
    Folder()
    {
        std::string name = ::testing::TempDir() + "/data.XXXXXX";
        EXPECT_NE(mkdtemp(&name[0]), nullptr);
        path_ = name;
        fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY);
    }
    ~Folder()
    {
        close(fd_);
        EXPECT_EQ(system(("rm -rf '" + path_ + "'").c_str()), 0);
    }
    int fd() const
    {
        return fd_;
    }
    std::string path(const std::string &name) const
    {
        return path_ + "/" + name;
    }
    std::string Write(const std::string &name, const std::string &contents) const
    {
        std::ofstream(path(name), std::ios::binary) << contents;
        return path(name);
    }
    std::string Read(const std::string &name) const
    {
        std::ifstream in(path(name), std::ios::binary);
        std::stringstream out;
        out << in.rdbuf();
        return out.str();
    }

  private:
    std::string path_;
    int fd_ = -1;
};

#endif
