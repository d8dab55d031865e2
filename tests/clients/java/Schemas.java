// Writes src/trace/messages.txt: the fields of every request and response of the Kafka whose jars are on the class
// path, all versions of a message in one line; src/trace/schema.rs tells the format.
//
//   tests/clients/kafka-real compile tests/clients/java DIR
//   KAFKA_CLASSES=DIR tests/clients/kafka-real java Schemas >src/trace/messages.txt

import java.util.*;
import java.util.stream.*;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.types.*;

public class Schemas {
    // A field in the versions that have it in this form.
    static class Entry {
        final String name;
        final Integer tag;
        final SortedSet<Integer> versions = new TreeSet<>();
        // The kind around what is nested: "int32", "[", "{"; of the last of a chain of arrays.
        final String shape;
        final List<Entry> nested = new ArrayList<>();

        Entry(String name, Integer tag, String shape) {
            this.name = name;
            this.tag = tag;
            this.shape = shape;
        }
    }

    public static void main(String[] arguments) {
        System.out.println("# Made by tests/clients/java/Schemas.java from Apache Kafka's message definitions.");
        for (ApiMessageType type : ApiMessageType.values()) {
            print(type, "request", type.requestSchemas());
            print(type, "response", type.responseSchemas());
        }
    }

    static void print(ApiMessageType type, String direction, Schema[] schemas) {
        List<Entry> fields = new ArrayList<>();
        int min = -1, max = -1, flexible = Short.MAX_VALUE;
        for (int version = 0; version < schemas.length; version++) {
            if (schemas[version] == null) continue;
            if (min < 0) min = version;
            max = version;
            if (flexible == Short.MAX_VALUE && isFlexible(schemas[version])) flexible = version;
            merge(fields, schemas[version], version);
        }
        if (min < 0) return;
        System.out.println(String.join(" ", "" + type.apiKey(), type.name, direction, min + "-" + max, "" + flexible,
            write(fields, range(min, max))));
    }

    static SortedSet<Integer> range(int min, int max) {
        return IntStream.rangeClosed(min, max).boxed().collect(Collectors.toCollection(TreeSet::new));
    }

    static boolean isFlexible(Schema schema) {
        return Arrays.stream(schema.fields()).anyMatch(field -> field.def.type instanceof TaggedFields);
    }

    // Fields keep their order from version to version; a new one stands behind the one it follows.
    static void merge(List<Entry> entries, Schema schema, int version) {
        int at = 0;
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields tagged) {
                for (var field : tagged.fields().entrySet())
                    add(entries, entries.size(), field.getValue(), field.getKey(), version);
            } else {
                at = add(entries, at, bound.def, null, version);
            }
        }
    }

    // Returns the place behind the field's own.
    static int add(List<Entry> entries, int at, Field field, Integer tag, int version) {
        String shape = shape(field.type);
        String name = camel(field.name);
        int place = -1;
        for (int n = 0; n < entries.size(); n++) {
            Entry entry = entries.get(n);
            if (entry.name.equals(name) && Objects.equals(entry.tag, tag) && entry.shape.equals(shape)) place = n;
        }
        if (place < 0) {
            place = at;
            entries.add(place, new Entry(name, tag, shape));
        }
        Entry entry = entries.get(place);
        entry.versions.add(version);
        if (nested(field.type) != null) merge(entry.nested, nested(field.type), version);
        return place + 1;
    }

    static Type element(Type type) {
        return type.arrayElementType().orElse(null);
    }

    static Schema nested(Type type) {
        while (element(type) != null) type = element(type);
        return type instanceof Schema schema ? schema : null;
    }

    static String shape(Type type) {
        if (element(type) != null) return "[" + shape(element(type)) + "]";
        if (type instanceof Schema) return type.isNullable() ? "?{}" : "{}";
        String name = type.toString();
        return switch (name) {
            case "BOOLEAN" -> "bool";
            case "STRING", "COMPACT_STRING", "NULLABLE_STRING", "COMPACT_NULLABLE_STRING" -> "string";
            case "BYTES", "COMPACT_BYTES", "NULLABLE_BYTES", "COMPACT_NULLABLE_BYTES" -> "bytes";
            case "RECORDS", "COMPACT_RECORDS", "NULLABLE_RECORDS", "COMPACT_NULLABLE_RECORDS" -> "records";
            case "INT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "FLOAT64", "UUID" -> name.toLowerCase();
            default -> throw new IllegalStateException("a kind of field that is new: " + name);
        };
    }

    static String camel(String name) {
        var text = new StringBuilder();
        for (String word : name.split("_"))
            text.append(text.isEmpty() ? word : word.substring(0, 1).toUpperCase() + word.substring(1));
        return text.toString();
    }

    static String write(List<Entry> entries, SortedSet<Integer> all) {
        return entries.stream().map(entry -> write(entry, all)).collect(Collectors.joining(" "));
    }

    static String write(Entry entry, SortedSet<Integer> all) {
        String text = entry.name;
        int first = entry.versions.first(), last = entry.versions.last();
        if (entry.versions.size() != last - first + 1) throw new IllegalStateException(entry.name + " has gaps: " + entry.versions);
        if (!entry.versions.equals(all)) text += "@" + first + "-" + (last == all.last() ? "" : last);
        if (entry.tag != null) text += "#" + entry.tag;
        return text + ":" + entry.shape.replace("{}", "{" + write(entry.nested, entry.versions) + "}");
    }
}
