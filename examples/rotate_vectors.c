/* A kernel in C on a case of `ropeaudit vectors`: reads the folder, rotates q and k, writes them back.
 *
 *   cc -O2 -o rotate_vectors examples/rotate_vectors.c -lm
 *   mkdir out && ./rotate_vectors case out && ropeaudit check case --returned out
 *
 * Cases in bfloat16 and float32, scaling default, linear and llama3. Little-endian machines. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ the kernel under audit: replace it */

static double factor = 1, low = 1, high = 4, original = 8192;

static double frequency(int pair, int rotary_dim, double base, const char *scaling) {
    const double pi = 3.141592653589793;
    double theta = pow(base, -2.0 * pair / rotary_dim);
    if (!strcmp(scaling, "linear")) return theta / factor;
    if (!strcmp(scaling, "llama3")) {
        double turns = original * theta / (2 * pi), smooth = (turns - low) / (high - low);
        if (turns < low) return theta / factor;
        if (turns < high) return (1 - smooth) * theta / factor + smooth * theta;
    }
    return theta;
}

/* Rotate the first rotary_dim of the dims of one vector. */
static void rotate(float *x, int64_t position, const double *theta, int rotary_dim, int interleaved) {
    for (int i = 0; i < rotary_dim / 2; i++) {
        double angle = (double)position * theta[i];
        float *a = interleaved ? x + 2 * i : x + i;
        float *b = interleaved ? a + 1 : a + rotary_dim / 2;
        double c = cos(angle), s = sin(angle), re = *a, im = *b;
        *a = (float)(re * c - im * s);
        *b = (float)(im * c + re * s);
    }
}

/* ------------------------------------------------------------------ files */

static float from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}

static uint16_t to_bf16(float x) { /* to nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static void *file(const char *folder, const char *name, const char *call, void *data, size_t bytes) {
    char path[4096]; /* reads where data is NULL, otherwise writes */
    snprintf(path, sizeof path, "%s/%s%s%s.bin", folder, name, *call ? "." : "", call);
    FILE *stream = fopen(path, data ? "wb" : "rb");
    void *buffer = data ? data : malloc(bytes);
    size_t done = !stream ? 0 : data ? fwrite(buffer, 1, bytes, stream) : fread(buffer, 1, bytes, stream);
    if (done != bytes || fclose(stream)) {
        fprintf(stderr, "%s: cannot be %s%s\n", path, data ? "written" : "read", data ? "; is the folder there?" : "");
        exit(1);
    }
    return buffer;
}

/* Calls at offsets share one run of positions; those that servers make have a row for each batch element. */
struct call {
    char name[64];
    int batch, heads[2], length, rows; /* heads of q and of k; rows of positions */
};

int main(int argc, char **argv) {
    char path[4096], key[256], word[512], dtype[64] = "", layout[64] = "", scaling[64] = "", digest[512] = "";
    char want[64] = "", integers[64] = "";
    struct call calls[256], every = {"", 0, {0, 0}, 0, 1};
    int count = 0, dim = 0, rotary_dim = 0;
    double base = 0;
    snprintf(path, sizeof path, "%s/manifest.txt", argc == 3 ? argv[1] : "");
    FILE *manifest = fopen(path, "r");
    if (argc != 3 || !manifest) return fprintf(stderr, "give the folder of a case and one to write into\n"), 1;
    while (fscanf(manifest, "%255s %511s", key, word) == 2) {
        int served = !strncmp(key, "call.", 5) && count; /* a size of the call that was named last */
        struct call *sized = served ? &calls[count - 1] : &every;
        const char *size = served ? key + 5 : key;
        if (!strcmp(size, "batch")) sized->batch = atoi(word);
        if (!strcmp(size, "heads")) sized->heads[0] = atoi(word);
        if (!strcmp(size, "kv_heads")) sized->heads[1] = atoi(word);
        if (!strcmp(size, "seq_len")) sized->length = atoi(word);
        if (served) sized->rows = sized->batch;
        if (!strcmp(key, "head_dim")) dim = atoi(word);
        if (!strcmp(key, "rotary_dim")) rotary_dim = atoi(word);
        if (!strcmp(key, "base")) base = atof(word);
        if (!strcmp(key, "scaling.factor")) factor = atof(word);
        if (!strcmp(key, "scaling.low")) low = atof(word);
        if (!strcmp(key, "scaling.high")) high = atof(word);
        if (!strcmp(key, "scaling.original")) original = atof(word);
        if (!strcmp(key, "want")) snprintf(want, sizeof want, "%.63s", word);
        if (!strcmp(key, "dtype")) snprintf(dtype, sizeof dtype, "%.63s", word);
        if (!strcmp(key, "positions_dtype")) snprintf(integers, sizeof integers, "%.63s", word);
        if (!strcmp(key, "layout")) snprintf(layout, sizeof layout, "%.63s", word);
        if (!strcmp(key, "scaling")) snprintf(scaling, sizeof scaling, "%.63s", word);
        if (!strcmp(key, "digest")) strcpy(digest, word);
        if ((!strcmp(key, "offset") || !strcmp(key, "call")) && count < 256) {
            calls[count] = every;
            snprintf(calls[count++].name, sizeof every.name, "%.63s", word);
        }
    }
    int wide = !strcmp(dtype, "float32"), known = wide || !strcmp(dtype, "bfloat16");
    int plain = !strcmp(scaling, "default") || !strcmp(scaling, "linear") || !strcmp(scaling, "llama3");
    if (!known || !plain || strcmp(want, "rotated") || strcmp(integers, "int64"))
        return fprintf(stderr, "%s, %s, scaling %s, %s: not known here\n", dtype, integers, scaling, want), 1;

    double *theta = malloc(sizeof(double) * dim);
    for (int i = 0; i < rotary_dim / 2; i++) theta[i] = frequency(i, rotary_dim, base, scaling);
    float *x = malloc(sizeof(float) * dim);
    for (struct call *call = calls; call < calls + count; call++) {
        int length = call->length;
        int64_t *positions = file(argv[1], "positions", call->name, NULL, 8 * (size_t)call->rows * length);
        for (int side = 0; side < 2; side++) { /* q, then k: (batch, heads, length, dim), the first of the file */
            int heads = call->heads[side];
            size_t vectors = (size_t)call->batch * heads * length, size = vectors * dim;
            void *data = file(argv[1], side ? "k" : "q", "", NULL, size * (wide ? 4 : 2));
            for (size_t vector = 0; vector < vectors; vector++) {
                size_t token = vector % length, element = vector / length / heads;
                for (int i = 0; i < dim; i++)
                    x[i] = wide ? ((float *)data)[vector * dim + i] : from_bf16(((uint16_t *)data)[vector * dim + i]);
                int64_t position = positions[element % call->rows * length + token];
                rotate(x, position, theta, rotary_dim, !strcmp(layout, "interleaved"));
                for (int i = 0; i < dim; i++)
                    if (wide) ((float *)data)[vector * dim + i] = x[i];
                    else ((uint16_t *)data)[vector * dim + i] = to_bf16(x[i]);
            }
            file(argv[2], side ? "k" : "q", call->name, data, size * (wide ? 4 : 2));
            free(data);
        }
        free(positions);
    }
    snprintf(path, sizeof path, "%s/case.txt", argv[2]); /* which case this is of, so that none is mixed up */
    FILE *note = fopen(path, "w");
    return !note || fprintf(note, "%s\n", digest) < 0 || fclose(note) ? 1 : 0;
}
