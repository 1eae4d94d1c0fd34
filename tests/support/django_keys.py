"""Saves objects with keys of ``idalloc.ext.django`` in each way, and checks them.

Its arguments are the server, and the setting of a database without tables as JSON.
"""

import json
import sys
from typing import Any

import django
import pytest
from django.apps import AppConfig
from django.conf import settings
from django.contrib.admin import AdminSite, ModelAdmin
from django.core import serializers
from django.db import connection, models, transaction
from django.db.migrations import Migration
from django.db.migrations.operations import AlterField, CreateModel
from django.db.migrations.state import ProjectState
from django.test.utils import CaptureQueriesContext

SERVER, DATABASE = sys.argv[1:]


class Shop(AppConfig):
    name, label, path = "json", "shop", "."  # of any module, since its models are here


settings.configure(
    IDALLOC={"server": SERVER, "sequence": "shop.{table}", "timeout": 10},
    DEFAULT_AUTO_FIELD="idalloc.ext.django.IdallocBigAutoField",
    DATABASES={"default": json.loads(DATABASE)},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin", "__main__.Shop"],
)
django.setup()

import idalloc  # noqa: E402 - needs the settings
from idalloc.ext.django import IdallocAutoField, IdallocBigAutoField, KeyConflict  # noqa: E402 - needs the settings


class Order(models.Model):
    customer = models.TextField()

    class Meta:
        app_label = "shop"


class Gift(Order):
    text = models.TextField()

    class Meta:
        app_label = "shop"


class Late(models.Model):
    class Meta:
        app_label = "shop"


def writes(save: Any) -> list[str]:
    """Return the kinds of the statements that a function sends."""
    with CaptureQueriesContext(connection) as captured:
        save()
    kinds = [each["sql"].partition(" ")[0] for each in captured.captured_queries]
    return [each for each in kinds if each in ("INSERT", "UPDATE")]


def save_in_each_way() -> None:
    assert isinstance(Order._meta.pk, IdallocBigAutoField)
    Order(id=41, customer="old").save()
    order = Order(customer="first")
    assert not order.pk
    assert writes(order.save) == ["UPDATE", "INSERT"]
    assert order.pk == 42
    assert writes(order.save) == ["UPDATE"]
    assert writes(lambda: Order.objects.create(customer="second")) == ["INSERT"]
    several = [Order(customer=f"{n}") for n in range(3000)]
    Order.objects.bulk_create([*several, Order(id=10_000, customer="own")])
    assert sorted(each.pk for each in several) == [*range(44, 3044)]
    with transaction.atomic():
        Order.objects.create(customer="lost")
        transaction.set_rollback(True)
    admin: Any = ModelAdmin(Order, AdminSite())
    form = admin.get_form(None)({"customer": "of a form"})
    assert list(form.fields) == ["customer"]
    admin.save_model(None, form.save(commit=False), form, change=False)
    text = '[{"model": "shop.order", "fields": {"customer": "a"}}, {"model": "shop.order", "pk": 7, "fields": {}}]'
    for each in serializers.deserialize("json", text):
        each.save()
    assert Gift.objects.create(customer="b", text="c").order_ptr_id == 3047
    ids = set(Order.objects.values_list("pk", flat=True))
    assert ids == {7, 10_000, *range(41, 3048)} - {3044}


def migrate_from_an_auto_field() -> None:
    old: Any = None
    state = ProjectState()
    text = ("customer", models.TextField())
    for operation in (
        CreateModel("Old", [("id", models.AutoField(primary_key=True)), text]),
        AlterField("old", "id", IdallocAutoField(primary_key=True)),
    ):
        with connection.schema_editor() as editor:
            migration = Migration("one", "shop")
            migration.operations = [operation]
            state = migration.apply(state, editor)
        old = state.apps.get_model("shop", "Old")
        old.objects.bulk_create([old(customer=f"{n}") for n in range(5)])
    assert [*old.objects.order_by("pk").values_list("pk", flat=True)] == [*range(1, 11)]


def compare_with_the_rows() -> None:
    with idalloc.Client(SERVER) as client:
        client.allocate_range("shop.shop_late")
    Late(id=500).save()
    with pytest.raises(KeyConflict, match=r"sequences advance shop\.shop_late --past 500"):
        Late().save()


if __name__ == "__main__":
    with connection.schema_editor() as editor:
        for model in (Order, Gift, Late):
            editor.create_model(model)
    save_in_each_way()
    migrate_from_an_auto_field()
    compare_with_the_rows()
    connection.close()
