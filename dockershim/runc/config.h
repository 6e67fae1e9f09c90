/* The part of dockershim-runc that reads and rewrites config.json: text in, text out, and no system calls. */
#pragma once

#include <stddef.h>

struct span {
    const char *at;
    size_t length;
};

/* What a container's config.json says. The spans point into it and are raw: the insides of JSON strings. */
struct request {
    int asked;                   /* whether the annotation is there; nothing below counts without it */
    unsigned long uid, gid;      /* the node's ids that are 0 in the user namespace */
    unsigned long size;          /* how many ids it has */
    struct span mounts;          /* destinations of mounts to id-map, each with the two bytes \n before it */
    struct span root;            /* root.path */
    struct span network;         /* the path of the network namespace to join; empty for a new one */
};

/* Both give NULL, or what is wrong. */
const char *read_request(struct span config, struct request *request);

/* Write config.json anew into `out`, with the user namespace. `root` is the new root.path, `user` the path of the user
   namespace to join, empty for a new one; both are raw insides of JSON strings. */
const char *amend(struct span config, const struct request *request, const char *root, const char *user, char *out,
                  size_t room, size_t *length);
