// A service whose jobs have texts that must be tokenized: a cache of tokens and who fills it. For
// tests.
#ifndef SHD_TESTS_SERVICE_TEXTS_H
#define SHD_TESTS_SERVICE_TEXTS_H

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "daemon/data/token_cache.h"
#include "tests/service/service.h"
#include "tests/store/files.h"

class Texts : public Service
{
  protected:
    void SetUp() override
    {
        Service::SetUp();
        root_ = open(dir.c_str(), O_RDONLY | O_DIRECTORY);
        shd_error err;
        ASSERT_EQ(shd_token_cache_open(root_, "tokens", 0, &cache_, &err), 0) << err.message;
        ASSERT_EQ(shd_preparer_create(&loop, cache_, &preparer, &err), 0) << err.message;
    }
    void TearDown() override
    {
        stop();
        shd_token_cache_free(cache_);
        close(root_);
        for (const auto &entry : std::filesystem::directory_iterator(dir)) {
            std::filesystem::remove_all(entry.path());
        }
        Service::TearDown();
    }
    std::string write(const std::string &name, const std::string &contents)
    {
        files::Write(dir + "/" + name, contents);
        return dir + "/" + name;
    }

    int root_ = -1;
    shd_token_cache *cache_ = nullptr;
};

#endif
