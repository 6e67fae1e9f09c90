#include "config.h"

#define USERS_ANNOTATION "io.dockershim.user-namespace"
#define MEMBERS_ANNOTATION "io.dockershim.config"
#define NETWORK_ANNOTATION "io.dockershim.network-namespace"
/* dockerd sets it in a new network namespace. In a user namespace the kernel refuses groups that are not mapped. */
#define PING_GROUPS "net.ipv4.ping_group_range"
#define EVERY_GROUP "\"0 2147483647\""

enum { MOST_EDITS = 4096, LONGEST_TEXT = 256 };
/* The highest 32 bit number is not an id: to the kernel it is -1. Kubelets give ids up to there. */
#define NO_ID 0xffffffffUL

#define LITERAL(text) ((struct span){text, sizeof(text) - 1})

static int equal(struct span a, struct span b) {
    if (a.length != b.length) return 0;
    for (size_t i = 0; i < a.length; i++)
        if (a.at[i] != b.at[i]) return 0;
    return 1;
}

static struct span of(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return (struct span){text, length};
}

/* ---- Finding values. dockerd wrote the file, and runc reads the result by the whole grammar after us, so this only
   has to find where values begin and end. It keeps no stack, so nesting costs nothing. It never reads past the end. */

static const char *skip_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) p++;
    return p;
}

/* From an opening quote to behind the closing one; NULL if there is none. */
static const char *skip_string(const char *p, const char *end) {
    for (p++; p < end; p++) {
        if (*p == '"') return p + 1;
        if (*p == '\\') p++;
    }
    return NULL;
}

static const char *skip_value(const char *p, const char *end) {
    size_t depth = 0;
    const char *begin = p;
    while (p < end) {
        if (*p == '"') {
            p = skip_string(p, end);
            if (!p) return NULL;
        } else if (*p == '{' || *p == '[') {
            depth++, p++;
        } else if (*p == '}' || *p == ']') {
            if (depth == 0) break; /* the end of what holds this value */
            depth--, p++;
            if (depth == 0) return p;
        } else if (depth == 0 && (*p == ',' || *p == ':' || *p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) {
            break;
        } else {
            p++;
            continue;
        }
        if (depth == 0) return p;
    }
    return depth == 0 && p > begin ? p : NULL;
}

/* One pass over the members of an object, or the elements of an array. */
struct walk {
    const char *p, *end;
    char close;
    int begun;
};

static int walk_into(struct span value, char open, struct walk *walk) {
    if (value.length < 2 || value.at[0] != open) return 0;
    *walk = (struct walk){value.at + 1, value.at + value.length - 1, open == '{' ? '}' : ']', 0};
    return *walk->end == walk->close;
}

/* 1 with the next one, 0 at the end, -1 if the text is not JSON. `key` is the raw inside of the string. */
static int next(struct walk *walk, struct span *key, struct span *value) {
    const char *p = skip_space(walk->p, walk->end);
    if (p == walk->end) return 0;
    if (walk->begun) {
        if (*p != ',') return -1;
        p = skip_space(p + 1, walk->end);
    }
    walk->begun = 1;
    if (walk->close == '}') {
        if (p == walk->end || *p != '"') return -1;
        const char *behind = skip_string(p, walk->end);
        if (!behind) return -1;
        *key = (struct span){p + 1, (size_t)(behind - p) - 2};
        p = skip_space(behind, walk->end);
        if (p == walk->end || *p != ':') return -1;
        p = skip_space(p + 1, walk->end);
    }
    const char *behind = skip_value(p, walk->end);
    if (!behind) return -1;
    *value = (struct span){p, (size_t)(behind - p)};
    walk->p = behind;
    return 1;
}

/* 1 with the member `name` of an object, 0 if there is none, -1 if it is there twice or the text is not JSON. */
static int member(struct span object, struct span name, struct span *value) {
    struct walk walk;
    struct span key, found;
    int times = 0, more;
    if (!walk_into(object, '{', &walk)) return -1;
    while ((more = next(&walk, &key, &found)) > 0)
        if (equal(key, name)) {
            *value = found;
            times++;
        }
    return more < 0 || times > 1 ? -1 : times;
}

/* The same for a member that is a string; `text` is its raw inside. */
static int string_member(struct span object, struct span name, struct span *text) {
    struct span value;
    int found = member(object, name, &value);
    if (found <= 0) return found;
    if (value.length < 2 || value.at[0] != '"') return -1;
    *text = (struct span){value.at + 1, value.length - 2};
    return 1;
}

static int find_object(struct span text, struct span *object) {
    const char *end = text.at + text.length, *begin = skip_space(text.at, end), *behind = skip_value(begin, end);
    if (!behind || *begin != '{') return 0;
    *object = (struct span){begin, (size_t)(behind - begin)};
    return 1;
}

/* ---- What is asked for. */

static int number(struct span *text, unsigned long *value) {
    size_t digits = 0;
    for (*value = 0; digits < text->length && text->at[digits] >= '0' && text->at[digits] <= '9'; digits++) {
        *value = *value * 10 + (unsigned long)(text->at[digits] - '0');
        if (*value > NO_ID) return 0;
    }
    text->at += digits, text->length -= digits;
    return digits > 0;
}

static int space(struct span *text) {
    if (text->length == 0 || *text->at != ' ') return 0;
    text->at++, text->length--;
    return 1;
}

/* Whether a text is only lines: nothing, or each with \n before it. */
static int are_lines(struct span text) {
    return text.length == 0 || (text.length > 2 && text.at[0] == '\\' && text.at[1] == 'n');
}

/* `uid gid size`, and then the destinations, each behind a line's end. */
static int parse_users(struct span text, struct request *request) {
    if (!number(&text, &request->uid) || !space(&text)) return 0;
    if (!number(&text, &request->gid) || !space(&text)) return 0;
    if (!number(&text, &request->size) || request->size == 0) return 0;
    /* Ids of the node's root would be no namespace of users. */
    if (request->uid == 0 || request->gid == 0) return 0;
    if (request->uid + request->size > NO_ID || request->gid + request->size > NO_ID) return 0;
    request->mounts = text;
    request->users = 1;
    return are_lines(text);
}

/* The beginning of a path, and then names of sysctls, each behind a line's end. */
static int parse_network(struct span text, struct request *request) {
    size_t length = 0;
    while (length < text.length && text.at[length] != '\\') length++;
    request->prefix = (struct span){text.at, length};
    request->sysctls = (struct span){text.at + length, text.length - length};
    request->early = 1;
    return length > 0 && text.at[0] == '/' && are_lines(request->sysctls);
}

const char *read_request(struct span config, struct request *request) {
    struct span top, annotations, users, network, linux_part, namespaces, root, one, key, type;
    struct walk walk;
    int users_found, network_found, found, more, networks = 0;

    *request = (struct request){0};
    if (!find_object(config, &top)) return "config.json is not a JSON object";
    found = member(top, LITERAL("annotations"), &annotations);
    if (found < 0) return "config.json is not valid JSON";
    if (found == 0 || *annotations.at != '{') return NULL;
    users_found = string_member(annotations, LITERAL(USERS_ANNOTATION), &users);
    network_found = string_member(annotations, LITERAL(NETWORK_ANNOTATION), &network);
    if (users_found == 0 && network_found == 0) return NULL;
    if (users_found != 0 && network_found != 0)
        return "a container with a user namespace can have no network namespace that is there already";
    if (users_found != 0 && (users_found < 0 || !parse_users(users, request)))
        return "the annotation " USERS_ANNOTATION " is not `uid gid size` and mounts";
    if (network_found != 0 && (network_found < 0 || !parse_network(network, request)))
        return "the annotation " NETWORK_ANNOTATION " is not the beginning of a path and sysctls";

    if (request->users &&
        (member(top, LITERAL("root"), &root) != 1 || string_member(root, LITERAL("path"), &request->root) != 1))
        return "config.json has no root.path";
    if (member(top, LITERAL("linux"), &linux_part) != 1 ||
        member(linux_part, LITERAL("namespaces"), &namespaces) != 1 || !walk_into(namespaces, '[', &walk))
        return "config.json has no linux.namespaces";
    while ((more = next(&walk, &key, &one)) > 0) {
        if (string_member(one, LITERAL("type"), &type) != 1) return "a namespace in config.json has no type";
        if (equal(type, LITERAL("user"))) return "config.json has a user namespace already";
        if (equal(type, LITERAL("network"))) {
            networks++;
            if (string_member(one, LITERAL("path"), &request->network) < 0) return "a namespace's path is not a string";
        }
    }
    if (more < 0) return "linux.namespaces of config.json is not valid JSON";
    if (networks != 1)
        return request->users ? "a container in the node's network namespace can have no user namespace"
                              : "config.json has no network namespace";
    if (request->early && request->network.length) return "config.json joins another network namespace already";
    return NULL;
}

/* ---- What is written. */

struct edit {
    const char *at; /* in the old text */
    size_t removed;
    struct span text;
};

struct edits {
    struct edit list[MOST_EDITS];
    size_t count;
};

/* Static, as it is large, and the program does one rewrite. */
static struct edits edits;

static int edit(const char *at, size_t removed, struct span text) {
    if (edits.count == MOST_EDITS) return 0;
    size_t i = edits.count++;
    for (; i > 0 && edits.list[i - 1].at > at; i--) edits.list[i] = edits.list[i - 1];
    edits.list[i] = (struct edit){at, removed, text};
    return 1;
}

struct text {
    char bytes[LONGEST_TEXT];
    size_t length;
};

static void put(struct text *text, const char *more) {
    while (*more && text->length < LONGEST_TEXT) text->bytes[text->length++] = *more++;
}

static void put_number(struct text *text, unsigned long value) {
    char digits[24];
    size_t i = sizeof digits;
    digits[--i] = 0;
    do digits[--i] = (char)('0' + value % 10);
    while (value /= 10);
    put(text, digits + i);
}

static void put_mapping(struct text *text, const char *name, unsigned long host, unsigned long size) {
    put(text, "\"");
    put(text, name);
    put(text, "\":[{\"containerID\":0,\"hostID\":");
    put_number(text, host);
    put(text, ",\"size\":");
    put_number(text, size);
    put(text, "}],");
}

static struct span written(const struct text *text) { return (struct span){text->bytes, text->length}; }

/* Whether a text is one of the lines. They are compared as dockerd wrote them, both in one way. */
static int is_line_of(struct span lines, struct span text) {
    const char *p = lines.at, *end = lines.at + lines.length;
    while (p < end) {
        const char *line = p + 2;
        for (p = line; p < end && !(p[0] == '\\' && p + 1 < end && p[1] == 'n'); p++) {}
        if (equal((struct span){line, (size_t)(p - line)}, text)) return 1;
    }
    return 0;
}

static size_t count_lines(struct span lines) {
    size_t count = 0;
    for (size_t i = 0; i + 1 < lines.length; i++) count += lines.at[i] == '\\' && lines.at[i + 1] == 'n';
    return count;
}

/* Files that dockerd makes for a pod and mounts into all its containers; root of the pod owns them. */
static int is_the_pods(struct span destination) {
    return equal(destination, LITERAL("/etc/hosts")) || equal(destination, LITERAL("/etc/hostname")) ||
           equal(destination, LITERAL("/etc/resolv.conf"));
}

static const char *map_mounts(struct span top, const struct request *request, struct span mapping) {
    struct span mounts, mount, key, destination, type, ignored;
    struct walk walk;
    size_t mapped = 0;
    int more, found = member(top, LITERAL("mounts"), &mounts);

    if (found < 0) return "mounts of config.json is there twice";
    if (found == 0) mounts = LITERAL("[]");
    if (!walk_into(mounts, '[', &walk)) return "mounts of config.json is not an array";
    while ((more = next(&walk, &key, &mount)) > 0) {
        if (string_member(mount, LITERAL("destination"), &destination) != 1)
            return "a mount in config.json has no destination";
        int asked = is_line_of(request->mounts, destination);
        int bind = string_member(mount, LITERAL("type"), &type) == 1 && equal(type, LITERAL("bind"));
        if (asked && !bind) return "a mount whose ids are to be mapped is not a bind mount";
        if (!asked && !(bind && is_the_pods(destination))) continue;
        if (member(mount, LITERAL("uidMappings"), &ignored) != 0) return "a mount has id mappings already";
        if (!edit(mount.at + 1, 0, mapping)) return "config.json has too many mounts";
        mapped += (size_t)asked;
    }
    if (more < 0) return "mounts of config.json is not valid JSON";
    if (mapped != count_lines(request->mounts)) return "a mount whose ids are to be mapped is not in config.json";
    return NULL;
}

static const char *write_edits(struct span config, char *out, size_t room, size_t *length) {
    size_t used = 0;
    const char *p = config.at;
    for (size_t i = 0; i <= edits.count; i++) {
        const struct edit *one = &edits.list[i];
        struct span kept = {p, (size_t)((i < edits.count ? one->at : config.at + config.length) - p)};
        struct span parts[] = {kept, i < edits.count ? one->text : LITERAL("")};
        for (size_t j = 0; j < 2; j++) {
            if (parts[j].length > room - used) return "config.json is too large";
            for (size_t k = 0; k < parts[j].length; k++) out[used++] = parts[j].at[k];
        }
        p = i < edits.count ? one->at + one->removed : p;
    }
    *length = used;
    return NULL;
}

const char *amend(struct span config, const struct request *request, const char *root, const char *user, char *out,
                  size_t room, size_t *length) {
    static struct text mapping, namespace, groups;
    struct span top, linux_part, namespaces, sysctls, value, ignored;
    const char *problem;

    edits.count = mapping.length = namespace.length = groups.length = 0;
    if (!find_object(config, &top)) return "config.json is not a JSON object";
    put_mapping(&mapping, "uidMappings", request->uid, request->size);
    put_mapping(&mapping, "gidMappings", request->gid, request->size);
    if ((problem = map_mounts(top, request, written(&mapping)))) return problem;

    if (member(top, LITERAL("linux"), &linux_part) != 1 || member(linux_part, LITERAL("namespaces"), &namespaces) != 1)
        return "config.json has no linux.namespaces";
    if (member(linux_part, LITERAL("uidMappings"), &ignored) != 0 ||
        member(linux_part, LITERAL("gidMappings"), &ignored) != 0)
        return "config.json has id mappings already";
    put(&namespace, "{\"type\":\"user\"");
    if (*user) {
        put(&namespace, ",\"path\":\"");
        put(&namespace, user);
        put(&namespace, "\"");
    } else if (!edit(linux_part.at + 1, 0, written(&mapping))) {
        return "config.json has too many mounts";
    }
    put(&namespace, "},");
    if (!edit(namespaces.at + 1, 0, written(&namespace))) return "config.json has too many mounts";

    if (member(linux_part, LITERAL("sysctl"), &sysctls) == 1 && *sysctls.at == '{' &&
        member(sysctls, LITERAL(PING_GROUPS), &value) == 1 && equal(value, LITERAL(EVERY_GROUP))) {
        put(&groups, "\"0 ");
        put_number(&groups, request->size - 1);
        put(&groups, "\"");
        if (!edit(value.at, value.length, written(&groups))) return "config.json has too many mounts";
    }
    if (!edit(request->root.at, request->root.length, of(root))) return "config.json has too many mounts";

    return write_edits(config, out, room, length);
}

static const struct {
    const char *name, *object, *inner; /* the object that gets the member, and one in it; none for the whole */
} members[] = {{"hooks", "", ""},
               {"ioPriority", "process", ""},
               {"scheduler", "process", ""},
               {"unified", "linux", "resources"}};
enum { MEMBERS = sizeof members / sizeof *members };

static int hexadecimal(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Put the member `line` asks for, `name` and digits, in its object. `work` moves behind its text. */
static const char *add_member(struct span top, struct span line, int *done, char **work) {
    struct span object = top, text, ignored, key;
    struct walk walk;
    size_t name = 0, i = 0;
    while (name < line.length && line.at[name] != ' ') name++;
    while (i < MEMBERS && !equal(of(members[i].name), (struct span){line.at, name})) i++;
    if (i == MEMBERS || done[i]++) return "the annotation " MEMBERS_ANNOTATION " has an unknown name, or one twice";
    if ((*members[i].object && member(top, of(members[i].object), &object) != 1) ||
        (*members[i].inner && member(object, of(members[i].inner), &object) != 1))
        return "config.json has no object for a member";
    if (member(object, of(members[i].name), &ignored) != 0) return "config.json has such a member already";
    if (!walk_into(object, '{', &walk) || next(&walk, &key, &ignored) != 1)
        return "config.json has no object for a member";

    char *begin = *work, *p = begin;
    *p++ = '"';
    for (size_t j = 0; j < name; j++) *p++ = line.at[j];
    *p++ = '"', *p++ = ':';
    char *value = p;
    for (size_t j = name + 1; j + 1 < line.length; j += 2) {
        int high = hexadecimal(line.at[j]), low = hexadecimal(line.at[j + 1]);
        if (high < 0 || low < 0) return "the annotation " MEMBERS_ANNOTATION " has no hexadecimal digits";
        *p++ = (char)(high << 4 | low);
    }
    if ((line.length - name) % 2 == 0 || !find_object((struct span){value, (size_t)(p - value)}, &text) ||
        text.length != (size_t)(p - value))
        return "the annotation " MEMBERS_ANNOTATION " has no object";
    *p++ = ',';
    *work = p;
    return edit(object.at + 1, 0, (struct span){begin, (size_t)(p - begin)}) ? NULL : "config.json has too many members";
}

const char *add_members(struct span config, char *work, char *out, size_t room, size_t *length) {
    struct span top, annotations, text;
    int done[MEMBERS] = {0}, found;
    const char *problem;

    edits.count = *length = 0;
    if (!find_object(config, &top)) return "config.json is not a JSON object";
    found = member(top, LITERAL("annotations"), &annotations);
    if (found < 0) return "config.json is not valid JSON";
    if (found == 0 || *annotations.at != '{') return NULL;
    found = string_member(annotations, LITERAL(MEMBERS_ANNOTATION), &text);
    if (found == 0) return NULL;
    if (found < 0) return "the annotation " MEMBERS_ANNOTATION " is not a string";
    for (const char *p = text.at, *end = text.at + text.length; p <= end; p += 2) {
        const char *line = p;
        while (p < end && *p != '\\') p++;
        if ((problem = add_member(top, (struct span){line, (size_t)(p - line)}, done, &work))) return problem;
        if (p < end && (p + 1 == end || p[1] != 'n')) return "the annotation " MEMBERS_ANNOTATION " is not lines";
    }
    return write_edits(config, out, room, length);
}

/* Take the sysctls that are set already out of the object, with the commas that are too many then. */
static const char *drop_sysctls(struct span sysctls, struct span lines) {
    struct walk walk;
    struct span key, value;
    const char *kept = NULL; /* the end of the last member that stays */
    int more, dropped = 0;   /* whether there are some behind it */

    if (!walk_into(sysctls, '{', &walk)) return "linux.sysctl of config.json is not an object";
    const char *from = walk.p;
    while ((more = next(&walk, &key, &value)) > 0) {
        if (is_line_of(lines, key)) {
            dropped = 1;
            continue;
        }
        /* The key begins one before its text, with the quote. */
        if (dropped && !edit(from, (size_t)(key.at - 1 - from), kept ? LITERAL(",") : LITERAL("")))
            return "config.json has too many sysctls";
        from = kept = walk.p;
        dropped = 0;
    }
    if (more < 0) return "linux.sysctl of config.json is not valid JSON";
    if (dropped && !edit(from, (size_t)(walk.end - from), LITERAL(""))) return "config.json has too many sysctls";
    return NULL;
}

const char *join_network(struct span config, const struct request *request, const char *path, char *out, size_t room,
                         size_t *length) {
    struct span top, linux_part, namespaces, sysctls, one, key, type;
    struct walk walk;
    const char *problem;
    static struct text place;

    edits.count = place.length = 0;
    if (!find_object(config, &top)) return "config.json is not a JSON object";
    if (member(top, LITERAL("linux"), &linux_part) != 1 ||
        member(linux_part, LITERAL("namespaces"), &namespaces) != 1 || !walk_into(namespaces, '[', &walk))
        return "config.json has no linux.namespaces";
    put(&place, "{\"type\":\"network\",\"path\":\"");
    put(&place, path);
    put(&place, "\"}");
    if (place.length == LONGEST_TEXT) return "the path of the network namespace is too long";
    while (next(&walk, &key, &one) > 0)
        if (string_member(one, LITERAL("type"), &type) == 1 && equal(type, LITERAL("network")) &&
            !edit(one.at, one.length, written(&place)))
            return "config.json has too many namespaces";
    int found = member(linux_part, LITERAL("sysctl"), &sysctls);
    if (found < 0) return "linux.sysctl of config.json is there twice";
    if (found && (problem = drop_sysctls(sysctls, request->sysctls))) return problem;
    return write_edits(config, out, room, length);
}
