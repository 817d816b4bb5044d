// A thin shim over the sentencepiece library; see sentencepiece.h. Floor F3.
#include "daemon/data/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "daemon/data/sentencepiece_check.h"

struct shd_sp {
    sentencepiece::SentencePieceProcessor processor;
};

int shd_sp_create(const char *bytes, size_t n, shd_sp **out, shd_sp_maps *maps, shd_error *err)
{
    SHD_TRY(shd_sp_check(bytes, n, maps, err));
    shd_sp *sp = new shd_sp;
    std::string message;
    try {
        const auto status = sp->processor.LoadFromSerializedProto(absl::string_view(bytes, n));
        message = !status.ok()                        ? status.ToString()
                  : sp->processor.GetPieceSize() <= 0 ? "it has no pieces"
                                                      : "";
    } catch (const std::exception &e) { // its tries throw
        message = e.what();
    }
    if (!message.empty()) {
        delete sp;
        return shd_fail(err, SHD_EDATA, "not a sentencepiece model: %s", message.c_str());
    }
    *out = sp;
    return SHD_OK;
}

void shd_sp_free(shd_sp *sp)
{
    delete sp;
}

int32_t shd_sp_size(const shd_sp *sp)
{
    return sp->processor.GetPieceSize();
}

int32_t shd_sp_bos(const shd_sp *sp)
{
    return sp->processor.bos_id();
}

int32_t shd_sp_eos(const shd_sp *sp)
{
    return sp->processor.eos_id();
}

const char *shd_sp_piece(const shd_sp *sp, int32_t id, size_t *n, shd_sp_kind *kind)
{
    const std::string &piece = sp->processor.IdToPiece(id);
    *n = piece.size();
    *kind = sp->processor.IsControl(id)   ? SHD_SP_CONTROL
            : sp->processor.IsUnknown(id) ? SHD_SP_UNKNOWN
            : sp->processor.IsByte(id)    ? SHD_SP_BYTE
                                          : SHD_SP_TEXT;
    return piece.c_str();
}

int shd_sp_merges(const shd_sp *sp)
{
    int text = 0;
    for (int id = 0; id < sp->processor.GetPieceSize(); id++) {
        const float score = sp->processor.GetScore(id);
        if (score != std::floor(score)) {
            return 0;
        }
        text += score < 0;
    }
    return text > 0;
}

char *shd_sp_decode(const shd_sp *sp, const int32_t *ids, size_t n, size_t *size)
{
    std::string text;
    const auto status = sp->processor.Decode(std::vector<int>(ids, ids + n), &text);
    if (!status.ok()) {
        text.clear();
    }
    *size = text.size();
    char *out = static_cast<char *>(malloc(text.size() + 1));
    if (out == nullptr) {
        abort();
    }
    memcpy(out, text.data(), text.size());
    return out;
}

int shd_sp_encode(const shd_sp *sp, const char *text, size_t n, void (*push)(void *arg, int32_t id),
                  void *arg, shd_error *err)
{
    std::vector<int> ids;
    const auto status = sp->processor.Encode(absl::string_view(text, n), &ids);
    if (!status.ok()) {
        return shd_fail(err, SHD_EDATA, "sentencepiece: %s", status.ToString().c_str());
    }
    for (const int id : ids) {
        push(arg, id);
    }
    return SHD_OK;
}
